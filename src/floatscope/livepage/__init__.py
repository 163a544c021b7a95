"""The live page: a viewer in which a model decodes prompts while the user watches and edits the decoding.

`floatscope live` calls `serve`, and `fs.live` is `notebook.live`. The server loads no model and does not
import torch: each model of `floatscope live` has its own worker process.
"""
