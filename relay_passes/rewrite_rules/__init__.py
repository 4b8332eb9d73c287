"""Rewrite rules as data; ``RULES`` are all of them, in the order in which they are tried."""

from tvm_ext.relay_passes.rewrite_rules import arithmetic, casts, comparison, data_movement
from tvm_ext.relay_passes.rewrite_rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *arithmetic.RULES,
    *casts.RULES,
    *comparison.RULES,
    *data_movement.RULES,
)
