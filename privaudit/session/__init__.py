"""Audits from sample to result: who is attacked, in which order, with which checks."""
