"""What a person looks at: scenes, the viewer and the pages around them. Never imports torch."""
