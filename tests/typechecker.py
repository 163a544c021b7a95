"""beartype as the test run uses it: an int is a float, as everywhere else in Python."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
