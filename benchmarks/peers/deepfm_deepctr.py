# /// script
# requires-python = "==3.11.*"
# dependencies = ["deepctr-torch==0.3.0", "pip", "requests", "torch==2.13.0"]
# ///
"""DeepCTR-Torch's DeepFM, see one_round.py."""

from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM
from one_round import DIM, arguments, by_name, run

rows, batch, epochs = arguments()
columns = [DenseFeat(f"dense_{i}", 1) for i in range(rows["dense"].shape[1])]
columns += [SparseFeat(f"id_{i}", int(n), embedding_dim=DIM) for i, n in enumerate(rows["cardinalities"])]
model = DeepFM(columns, columns, dnn_hidden_units=(128, 64), init_std=0.01)
model.compile("adam", "binary_crossentropy")
inputs, labels = by_name(rows), rows["labels"]
run(lambda: model.fit(inputs, labels, batch_size=batch, epochs=epochs, verbose=0), len(labels) * epochs)
