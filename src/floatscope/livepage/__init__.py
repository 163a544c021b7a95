"""The live page: the viewer with a model behind it, which decodes prompts while the user watches and edits.

`floatscope live` runs `serve`; `fs.live` is `notebook.live`. The server holds no model and never imports
torch: each model has its own worker process.
"""
