"""Export a run: its model as an ONNX graph with tables beside it, its transforms, and the proof that both agree."""
