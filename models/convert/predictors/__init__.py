"""Estimators that predict, one file a family: each writes its own part of a graph.

What no file here knows is skl2onnx's to convert.
"""
