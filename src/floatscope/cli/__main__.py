"""Run the command line as `python -m floatscope.cli`, for installations without the script."""

from . import main

main()
