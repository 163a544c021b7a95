"""Run the command line of lm-evaluation-harness, with the model "floatscope" registered."""

from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    cli_evaluate()
