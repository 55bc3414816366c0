"""From measured seconds to a model of this machine, with the error of each class.

This package fits and does not measure: ``pathways_nb.calibration`` measures. So fits are tested on numbers with known
answers, without devices.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
