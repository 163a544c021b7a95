"""Run Floatscope's models on the tasks of lm-evaluation-harness, with any sampler and any intervention.

    from floatscope.harness import FloatscopeLM  # also registers the model "floatscope"
    lm_eval.simple_evaluate(model=FloatscopeLM("pair/mdm", sampler="confidence"), tasks=[...])

    python -m floatscope.harness run --model floatscope --model_args model=pair/mdm --tasks ...

The harness provides the tasks, the wording of prompts and the scores. This package turns text into tokens,
and decodes or scores the tokens with the same functions as the rest of Floatscope. This package needs the
extra `lm-eval`.
"""

from ..errors import FloatscopeError

try:
    # Importing it registers the harness's models, which are not looked for once one is registered.
    import lm_eval.models
except ImportError as error:
    raise FloatscopeError(
        f"lm-evaluation-harness cannot be imported ({error})",
        "Install it: pip install 'floatscope[lm-eval]'.",
    ) from error

from .language_model import FloatscopeLM

__all__ = ["FloatscopeLM"]
