"""Python runs this at the start of each process of the tests: conftest.py puts it on PYTHONPATH.

What importing torch and lightning makes, stays. Looking through it for garbage after every 700 new
objects, as Python 3.11 does, takes a tenth of such a start, and the tests have hundreds of them.
"""

import gc

gc.set_threshold(10_000)
