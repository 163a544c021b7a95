"""`python -m floatscope.cli`: the command line where no script is installed."""

from . import main

main()
