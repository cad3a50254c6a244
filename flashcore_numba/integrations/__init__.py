"""Adapters that put the kernels to work in other frameworks: no kernels, one file per framework.

Nothing of the package imports them, so a framework is needed only by those who use its adapter.
"""
