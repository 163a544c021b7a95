"""The live page: the viewer with a model behind it. A prompt is decoded as one watches, and can be touched.

`serve` is what `floatscope live` runs, `notebook.live` what `fs.live` is. The server holds no model and
never imports torch: each model has a worker process of its own.
"""
