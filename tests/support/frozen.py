"""Imported last by the process that programs are forked from: see ``forked``.

All that is there is kept out of the collector's way; else the first collection in each of them
would look through all of it, and copy it.
"""

import gc

gc.freeze()
