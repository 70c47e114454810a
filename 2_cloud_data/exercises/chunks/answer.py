"""Chunks for those who read.

An array of 1200 x 720 x 1440 float32 values (time, lat, lon) is read in three ways, each from a
copy of its own:

           what is read                    requests   MB
  WINDOWS  12 x 16 x 32, begins anywhere   4          2
  MAPS     1 x 720 x 1440, any month       4          5
  SERIES   1200 x 1 x 1, any point         2          0.5

The chunks below look natural: as large as a window, a year in each as the files come, the series of
one point. Each copy costs too much of something. Choose chunks with which a read costs at most what
the table says, on average and before compression, and no copy has more than 300,000 objects.
Make no shards. chunk_size.py counts.
"""

WINDOWS = (12, 16, 32)
MAPS = (12, 720, 1440)
SERIES = (1200, 1, 1)
