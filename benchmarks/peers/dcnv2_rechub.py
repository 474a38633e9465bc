# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch-rechub==0.9.0", "torch==2.13.0"]
# ///
"""torch-rechub's DCN V2, see one_round.py."""

from one_round import DIM, arguments, by_name, run
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.ranking import DCNv2
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

rows, batch, epochs = arguments()
features = [DenseFeature(f"dense_{i}") for i in range(rows["dense"].shape[1])]
features += [SparseFeature(f"id_{i}", vocab_size=int(n), embed_dim=DIM) for i, n in enumerate(rows["cardinalities"])]
inputs, labels = by_name(rows), rows["labels"][:, 0]
loader, *_ = DataGenerator(inputs, labels).generate_dataloader(inputs, labels, inputs, labels, batch_size=batch)
mlp = {"dims": [128, 64]}
trainer = CTRTrainer(DCNv2(features, 3, mlp, model_structure="stacked", use_low_rank_mixture=False))
run(lambda: [trainer.train_one_epoch(loader) for _ in range(epochs)], len(labels) * epochs)
