"""Long where a read is long, short where it picks, and large enough to be worth a request."""

WINDOWS = (24, 32, 64)  # twice the window: 3.2 requests in the mean, where its own size has 7.3
MAPS = (1, 720, 1440)
SERIES = (1200, 4, 4)
