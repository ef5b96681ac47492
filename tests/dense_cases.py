"""Adapters of dense models as trainers and their tools write them, beside the handed cases.

The wanted updates are made from the factors themselves, never from what any reader made of them.
"""

from __future__ import annotations

from dense_config_cases import CASES as CONFIGS
from dense_file_cases import CASES as FILES
from dense_key_cases import CASES as KEYS

CASES = {**KEYS, **CONFIGS, **FILES}
