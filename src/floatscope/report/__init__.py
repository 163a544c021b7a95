"""The report: the viewer and the pages around it. It never imports torch."""
