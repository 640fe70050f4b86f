"""For all tests."""

import signal

# A shell that starts the tests in the background leaves Ctrl-C ignored, in them and in every process that they start. With a
# handler of our own it works here, and the processes that we start get the system's default.
signal.signal(signal.SIGINT, signal.default_int_handler)
