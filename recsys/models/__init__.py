"""Models: logits from (dense, sparse). A model is one file here and one YAML in conf/model/."""
