"""Run the command line as `python -m floatscope.cli`, for installations without the script `floatscope`."""

from . import main

main()
