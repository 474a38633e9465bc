"""Graphs with fused tables and padded lists give what the models give, before and after their conversion to ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_inputs import random_arrays
from small_models import SMALL, TASKS
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays
from recsys.data.features.batch_tensors import RowTensors
from recsys.export.artefact.graph_io import check_feed, feature_inputs, graph_inputs
from recsys.export.fused_tables import FusedTable, ItemVectors, TablePart, Tables, fuse, replace_lookups, write_tables
from recsys.export.graphs import example_inputs, to_onnx, trace
from recsys.export.ranking_graph import RankingGraph
from recsys.export.retrieval_graph import ITEMS, QueryGraph
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel, ClassLabel, NumberLabel, columns, predict
from recsys.models.bert4rec import BERT4Rec
from recsys.models.bst import BST
from recsys.models.comirec import ComiRec
from recsys.models.common.lists import first_kept, list_means, padded_to
from recsys.models.common.numeric import NumericEmbedding, Periodic, Piecewise, WithNumericEmbedding
from recsys.models.dcnv2 import DCNv2
from recsys.models.deepfm import DeepFM
from recsys.models.dien import DIEN
from recsys.models.din import DIN
from recsys.models.dlrm import DLRM
from recsys.models.dnn import DNN
from recsys.models.esmm import ESMM
from recsys.models.fibinet import FiBiNET
from recsys.models.fuxi_alpha import FuXiAlpha
from recsys.models.gru4rec import GRU4Rec
from recsys.models.hstu import HSTU
from recsys.models.hstu_rank import HSTURank
from recsys.models.lightgcn import LightGCN
from recsys.models.masknet import MaskNet
from recsys.models.mf import MF
from recsys.models.mult_vae import MultVAE
from recsys.models.neumf import NeuMF
from recsys.models.sasrec import SASRec
from recsys.models.sdim import SDIM
from recsys.models.sim import SIM
from recsys.models.simplex import SimpleX
from recsys.models.target_attention import TargetAttention
from recsys.models.transformer import Transformer
from recsys.models.two_tower import TwoTower
from recsys.models.ultragcn import UltraGCN
from recsys.schema.command_schemas import TableType
from recsys.sharding.tables import tables

LABELS = (BinaryLabel("click"), NumberLabel("stars", mean=3.0, std=2.0), ClassLabel("kind", ("a", "b", "c")))
RANKING = FeatureSpec(
    dense=(DenseFeature("age", unit=True), DenseFeature("price", unit=True), DenseFeature("title", width=3)),
    sparse=(
        SparseFeature("user", 11, "user"),
        SparseFeature("item", 7, "item"),
        SparseFeature("before", 7, "item"),  # shares the item's table
        SparseFeature("tags", 5, "tags", multi_valued=True, pooling="mean"),
        SparseFeature("seen", 7, "item", multi_valued=True, pooling="sum"),
    ),
    labels=LABELS,
)
BEHAVIOUR = FeatureSpec(
    dense=RANKING.dense,
    sparse=(
        *RANKING.sparse[:2],
        SparseFeature("category", 4, "category"),
        RANKING.sparse[3],
        SparseFeature("items", 7, "item", multi_valued=True, sequence=True),
        SparseFeature("categories", 4, "category", multi_valued=True, sequence=True),
        SparseFeature("pauses", 5, "pause", multi_valued=True, sequence=True),
    ),
    labels=LABELS,
)
SEQUENCES = FeatureSpec(
    dense=(DenseFeature("age"),),
    sparse=(
        SparseFeature("user", 11, "user"),
        SparseFeature("item", 9, "item", multi_valued=True, sequence=True),
        SparseFeature("kind", 4, "kind", multi_valued=True, sequence=True),
    ),
    labels=(),
    item="item",
)
PAIRS = FeatureSpec(
    dense=(DenseFeature("age"),),
    sparse=(
        SparseFeature("user", 11, "user"),
        SparseFeature("item", 9, "item"),
        SparseFeature("history", 9, "item", multi_valued=True),
        SparseFeature("tags", 5, "tags", multi_valued=True, pooling="mean"),
    ),
    labels=(),
    item="item",
)
LAG = SparseFeature("previous", 9, "item")  # one value a row, where histories are lists
LAGGED = replace(PAIRS, sparse=(*PAIRS.sparse[:2], LAG, *PAIRS.sparse[2:]))
LAG_ALONE = replace(PAIRS, sparse=(*PAIRS.sparse[:2], LAG))


def with_own_dims(features: FeatureSpec) -> FeatureSpec:
    """The features with tables of several dims."""
    dims = {"item": 4, "tags": 12}
    return replace(features, sparse=tuple(replace(f, dim=dims.get(f.table)) for f in features.sparse))


def embedded(numeric: NumericEmbedding) -> nn.Module:
    """A model that reads embedded numbers."""
    return WithNumericEmbedding(numeric, DLRM(numeric.features, dim=8, bottom_mlp=[8]))


SCORERS: dict[str, Any] = {
    **{m.__name__.lower(): partial(m, **options) for m, options in (SMALL | TASKS).items() if m is not ESMM},
    "dlrm_cat": lambda f: DLRM(f, dim=8, bottom_mlp=[8], interaction="cat", batch_norm=True, dropout=0.5),
    "dcnv2_parallel": lambda f: DCNv2(f, dim=4, structure="parallel", rank=3),
    "dcnv2_moe": lambda f: DCNv2(f, dim=4, rank=3, experts=2),
    "masknet_serial": lambda f: MaskNet(f, dim=4, structure="serial"),
    "fibinet_each": lambda f: FiBiNET(f, dim=4, bilinear="each"),
    "piecewise": lambda f: embedded(Piecewise(f, dim=4, bins=3)),
    "periodic": lambda f: embedded(Periodic(f, dim=4, frequencies=2)),
    "dlrm_dims": lambda f: DLRM(with_own_dims(f), dim=8, bottom_mlp=[8]),
    "dnn_dims": lambda f: DNN(with_own_dims(f), dim=8),
    "din": lambda f: DIN(f, dim=8, activation="dice", init_std=0.5),
    "din_softmax": lambda f: DIN(f, dim=8, softmax=True, init_std=0.5),
    "target_attention": lambda f: TargetAttention(f, dim=8, max_length=3, init_std=0.5),
    "bst": lambda f: BST(f, dim=8, max_length=3, blocks=2, init_std=0.5),
    "dien": lambda f: DIEN(f, dim=8, init_std=0.5),
    "sim": lambda f: SIM(f, dim=8, max_length=3, k=2, init_std=0.5),
    "sdim": lambda f: SDIM(f, dim=8, init_std=0.5),
    "hstu_rank": lambda f: HSTURank(f, dim=8, max_length=3, init_std=0.5),
    "hstu_rank_times": lambda f: HSTURank(
        f, dim=8, max_length=3, blocks=1, times="pauses", actions=["pauses"], init_std=0.5
    ),
}
BEHAVIOUR_MODELS = (
    "din",
    "target_attention",
    "bst",
    "dien",
    "sim",
    "sdim",
    "hstu_rank",
)  # whose features are BEHAVIOUR's


def features_of(name: str) -> FeatureSpec:
    """The features of a scorer."""
    return BEHAVIOUR if name.startswith(BEHAVIOUR_MODELS) else RANKING


RETRIEVERS: dict[str, tuple[Any, FeatureSpec]] = {
    "sasrec": (lambda f: SASRec(f, dim=8, heads=2, max_length=4), SEQUENCES),
    "sasrec_original": (
        lambda f: SASRec(f, dim=8, heads=2, max_length=4, projection=False, attention_dropout=0.5, init="glorot"),
        SEQUENCES,
    ),
    "sasrec_before": (lambda f: SASRec(f, dim=8, max_length=4, norm="before"), SEQUENCES),
    "bert4rec": (lambda f: BERT4Rec(f, dim=8, max_length=4), SEQUENCES),
    "bert4rec_original": (
        lambda f: BERT4Rec(f, dim=8, max_length=4, positions="start", output_bias=True, attention_dropout=0.5),
        SEQUENCES,
    ),
    "hstu": (lambda f: HSTU(f, dim=8, max_length=5), SEQUENCES),
    "hstu_timed": (lambda f: HSTU(f, dim=8, max_length=5, times="kind"), SEQUENCES),
    "fuxi_alpha": (lambda f: FuXiAlpha(f, dim=8, max_length=5, times="kind"), SEQUENCES),
    "esasrec": (lambda f: Transformer(f, dim=8, feed_forward="swiglu", gated=True), SEQUENCES),
    "gru4rec": (lambda f: GRU4Rec(f, dim=8, hidden=6, layers=2), SEQUENCES),
    "comirec": (lambda f: ComiRec(f, dim=8, interests=3, hidden=6, max_length=3), SEQUENCES),
    "transformer": (lambda f: Transformer(f, dim=8, context=True), SEQUENCES),
    "transformer_masked": (
        lambda f: Transformer(f, dim=8, objective="masked", block="relative", merge="sum"),
        SEQUENCES,
    ),
    "mult_vae": (lambda f: MultVAE(f, hidden=8, latent=4), SEQUENCES),
    "two_tower": (lambda f: TwoTower(f, dim=8, out=6), PAIRS),
    "two_tower_lag": (lambda f: TwoTower(f, dim=8, out=6), LAGGED),
    "two_tower_lag_alone": (lambda f: TwoTower(f, dim=8, out=6), LAG_ALONE),
    "mf": (lambda f: MF(f, user="user", dim=8), PAIRS),
    "mf_cosine": (lambda f: MF(f, user="user", dim=8, normalise=True), PAIRS),
    "simplex": (lambda f: SimpleX(f, user="user", dim=8), SEQUENCES),
    "ultragcn": (lambda f: UltraGCN(f, user="user", dim=8, init_std=0.02), PAIRS),
    "lightgcn": (lambda f: LightGCN(f, user="user", dim=8), PAIRS),
    "neumf": (lambda f: NeuMF(f, user="user", dim=8), PAIRS),
}


def made(make: Any, features: FeatureSpec) -> nn.Module:
    """The model with random weights, batch norm's statistics included."""
    torch.manual_seed(0)
    model = make(features).eval()
    for name, x in model.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            x.copy_(torch.rand_like(x))
        elif name.endswith(("user_vectors", "item_vectors")):
            x.copy_(torch.randn_like(x))
        elif "wide_" in name or ".t_" in name:
            x.copy_(0.3 * torch.randn_like(x))
    return model


class Weights:
    """A model's tables, read as a checkpoint's are."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = {f"model.{n}": p.detach() for n, p in model.named_parameters()}

    def size(self, key: str) -> list[int]:
        return list(self._weights[key].shape)

    def read(self, key: str, first: int, rows: int) -> Tensor:
        return self._weights[key][first : first + rows].clone()


def fused_parts(model: nn.Module, type_: str, folder: Path) -> tuple[Tables, list[TablePart], dict[str, Tensor]]:
    """Write the model's tables; return them and, read back from the files, their arrays."""
    infos = tables(model)
    fused = fuse(infos.values(), type_)
    write_tables(Weights(model), infos, fused.values(), folder)  # type: ignore[arg-type]
    parts = [p for t in fused.values() for p in t.parts]
    arrays = {}
    for table in fused.values():
        for p in table.parts:
            raw = torch.from_numpy(np.fromfile(folder / p.file, np.uint8)).view(p.dtype)
            arrays[p.name] = raw.view(table.rows, p.columns)
    return Tables(fused), parts, arrays


def ranking_graph(
    name: str, type_: str, folder: Path
) -> tuple[nn.Module, RankingGraph, list[TablePart], dict[str, Tensor], dict[str, nn.Module]]:
    """Return a model, its graph with the graph's tables, and the modules whose stand-ins exist in ONNX only."""
    features = features_of(name)
    model, copy = made(SCORERS[name], features), made(SCORERS[name], features)
    found, parts, arrays = fused_parts(copy, type_, folder)
    only_onnx = {n: m for n, m in copy.named_children() if isinstance(m, nn.GRU)}
    replace_lookups(copy, features, found)
    return model, RankingGraph(copy, features, LABELS, found), parts, arrays, only_onnx


def expected(model: nn.Module, arrays: Arrays, features: FeatureSpec) -> np.ndarray:
    batch = RowTensors.from_arrays(arrays, features).batch(np.zeros((arrays.rows, 3)))
    with torch.no_grad():
        return predict(model(batch.dense, batch.sparse), LABELS).numpy()


def uneven(arrays: Arrays, features: FeatureSpec) -> dict[str, np.ndarray]:
    """The inputs of a graph; those of a history have different widths, as a client may pad them."""
    feed = graph_inputs(arrays, features).feed
    if "items" in feed:
        feed["items"] = np.pad(feed["items"], ((0, 0), (0, 2)), constant_values=-1)
    return feed


def tensors(feed: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {n: torch.from_numpy(x) for n, x in feed.items()}


@pytest.mark.parametrize("name", SCORERS)
def test_a_ranking_graph_is_its_model(name: str, tmp_path: Path) -> None:
    model, graph, _, parts, only_onnx = ranking_graph(name, "fp32", tmp_path)
    for module, original in only_onnx.items():
        setattr(graph.model, module, original)
    features = features_of(name)
    for rows in (1, 40):
        arrays = random_arrays(features, rows, seed=rows)
        with torch.no_grad():
            out = graph.eval()(parts, tensors(uneven(arrays, features)))
        assert list(out) == columns(LABELS) == ["click", "stars", "kind_a", "kind_b", "kind_c"]
        wanted = expected(model, arrays, features)
        assert np.abs(torch.stack(list(out.values()), 1).numpy() - wanted).max() < 1e-5
        assert rows == 1 or wanted.std(axis=0).min() > 1e-4  # the rows do differ


@pytest.mark.parametrize("name", BEHAVIOUR_MODELS)
def test_a_graph_takes_long_lists(name: str, tmp_path: Path) -> None:
    """Lists of up to 1,000 items, padded to one length, give what they give one after another."""
    model, graph, _, parts, only_onnx = ranking_graph(name, "fp32", tmp_path)
    for module, original in only_onnx.items():
        setattr(graph.model, module, original)
    features = features_of(name)
    arrays = random_arrays(features, 4, longest=1000)
    assert max(arrays.lengths["items"]) > 500
    with torch.no_grad():
        out = graph.eval()(parts, tensors(graph_inputs(arrays, features).feed))
    wanted = expected(model, arrays, features)
    assert np.isfinite(wanted).all() and np.abs(torch.stack(list(out.values()), 1).numpy() - wanted).max() < 1e-4


@pytest.mark.parametrize("type_", get_args(TableType))
def test_stored_rows_are_those_of_fbgemm(type_: Any) -> None:
    """int8 and int4 rows are what FBGEMM reads of its own quantised rows; fp16 is IEEE's."""
    rows = torch.randn(50, 12) * torch.rand(50, 1) * 10
    table = FusedTable(12, {}, 51, type_)
    parts = dict(zip([p.name for p in table.parts], table.encode(rows), strict=True))
    ops = torch.ops.fbgemm
    wanted = {
        "fp32": lambda: rows,
        "fp16": lambda: rows.half().float(),
        "int8": lambda: ops.Fused8BitRowwiseQuantizedToFloat(ops.FloatToFused8BitRowwiseQuantized(rows)),
        "int4": lambda: ops.FusedNBitRowwiseQuantizedSBHalfToFloat(
            ops.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4), 4
        ),
    }[type_]()
    assert (table.decode(parts, torch.arange(50)) - wanted).abs().max() < 1e-5
    steps = (rows.amax(1) - rows.amin(1)) / {"int8": 255, "int4": 15}.get(type_, 1e9)
    assert ((wanted - rows).abs().amax(1) <= steps * 0.55 + 1e-2).all()


def test_an_odd_number_of_columns_has_no_int4() -> None:
    infos = tables(made(lambda f: DeepFM(f, dim=5), RANKING)).values()
    with pytest.raises(UserError, match=r"^tables=int4: table t_user has 5 columns; int4 needs an even number$"):
        fuse(infos, "int4")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("din", "fp32"),
        pytest.param("deepfm", "int8", marks=pytest.mark.slow),
        pytest.param("dlrm", "fp32", marks=pytest.mark.slow),
    ]
    + [
        pytest.param(n, t, marks=pytest.mark.slow)
        for n, t in (
            ("dcnv2_parallel", "int4"),
            ("widedeep", "fp16"),
            ("target_attention", "int8"),
            *((n, "fp32") for n in SCORERS if n not in ("dlrm", "target_attention")),
        )
    ],
)
def test_onnx_gives_what_the_graph_gives(name: str, type_: str, tmp_path: Path) -> None:
    """One conversion serves any number of rows and any lengths of lists, with the tables outside of the file."""
    _, graph, parts, arrays, only_onnx = ranking_graph(name, type_, tmp_path)
    features = features_of(name)
    inputs = example_inputs(features)
    sizes = {n: len(x) for n, x in arrays.items()}
    to_onnx(trace(graph, parts, inputs), parts, list(inputs), graph.outputs, tmp_path / "model.onnx", sizes)
    for module, original in only_onnx.items():
        setattr(graph.model, module, original)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    for rows, longest in ((1, 0), (1, 5), (30, 5)):
        feed = uneven(random_arrays(features, rows, longest=longest), features)
        with torch.no_grad():
            wanted = graph.eval()(arrays, tensors(feed))
        for name_, x in zip(graph.outputs, session.run(graph.outputs, feed), strict=True):
            assert np.abs(x - wanted[name_].numpy()).max() < 1e-5


def queries_of(model: Any, features: FeatureSpec, arrays: Arrays) -> np.ndarray:
    """Queries in training's layout, lists one after another."""
    batch = RowTensors.from_arrays(arrays, features).batch(np.zeros((arrays.rows, 0)))
    with torch.no_grad():
        made_ = model.make_queries(batch)
        return model.encode(batch, made_, model.items(made_.inputs)).numpy()


def query_graph(name: str, folder: Path) -> tuple[Any, FeatureSpec, QueryGraph, list[TablePart], dict[str, Tensor]]:
    make, features = RETRIEVERS[name]
    model, copy = made(make, features), made(make, features)
    with torch.no_grad():
        vectors = model.items(torch.arange(9))
    tables_ = Tables({})
    copy.items = ItemVectors(copy.items, tables_, ITEMS)
    (folder / "tables").mkdir()
    vectors.numpy().tofile(folder / "tables" / "items.bin")
    found, parts, arrays = fused_parts(copy, "fp32", folder)
    tables_.by_dim = found.by_dim
    graph = QueryGraph(copy, features, tables_)
    return (
        model,
        features,
        graph,
        [TablePart(ITEMS, torch.float32, vectors.shape[1]), *parts],
        {ITEMS: vectors} | arrays,
    )


@pytest.mark.parametrize("name", RETRIEVERS)
def test_padded_lists_give_the_same_queries(name: str, tmp_path: Path) -> None:
    model, features, graph, _, parts = query_graph(name, tmp_path)
    gru = getattr(graph.model, "gru", None)
    replace_lookups(graph.model, features, graph._tables)
    if gru is not None:  # its stand-in exists in ONNX only
        graph.model.gru = gru
    for rows, longest in ((1, 5), (30, 5), (1, 1)):
        arrays = random_arrays(features, rows, seed=rows, longest=longest)
        feed = graph_inputs(arrays, features, one_length=True).feed
        with torch.no_grad():
            got = graph.eval()(parts, tensors(feed))["query"].numpy()
        wanted = queries_of(model, features, arrays)
        assert got.shape == wanted.shape and np.abs(got - wanted).max() < 1e-5
        assert rows == 1 or wanted.std(axis=0).max() > 1e-3


@pytest.mark.parametrize(
    "name", ["gru4rec", *(pytest.param(n, marks=pytest.mark.slow) for n in RETRIEVERS if n != "gru4rec")]
)
def test_onnx_gives_the_same_queries(name: str, tmp_path: Path) -> None:
    model, features, graph, parts, arrays = query_graph(name, tmp_path)
    replace_lookups(graph.model, features, graph._tables)
    inputs = example_inputs(features)
    program = trace(graph, parts, inputs, one_length=True)
    to_onnx(program, parts, list(inputs), ["query"], tmp_path / "model.onnx", {n: len(x) for n, x in arrays.items()})
    session = ort.InferenceSession(tmp_path / "model.onnx")
    read = [i.name for i in session.get_inputs()]
    for rows, longest in ((1, 1), (20, 5)):
        values = random_arrays(features, rows, longest=longest)
        feed = graph_inputs(values, features, one_length=True).feed
        got = session.run(["query"], {n: feed[n] for n in read})[0]
        assert np.abs(got - queries_of(model, features, values)).max() < 1e-5


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_both_layouts_agree(lists: list[list[int]]) -> None:
    """Means of lists, and lists without some of their values, are the same in both layouts."""
    lengths = torch.tensor([len(x) for x in lists])
    values = torch.tensor([v for x in lists for v in x], dtype=torch.long)
    longest = max(1, int(lengths.max()))
    padded = torch.full((len(lists), longest), 7)
    for i, x in enumerate(lists):
        padded[i, : len(x)] = torch.tensor(x, dtype=torch.long)
    kept, sizes = first_kept(values, values > 0, lengths)
    means = list_means(values.double()[:, None], lengths)
    with padded_to(longest):
        kept_, sizes_ = first_kept(padded.flatten(), padded.flatten() > 0, lengths)
        means_ = list_means(padded.flatten().double()[:, None], lengths)
    assert sizes.tolist() == sizes_.tolist()
    rows = [r[:n].tolist() for r, n in zip(kept_.view(-1, longest), sizes_, strict=True)]
    assert [v for r in rows for v in r] == kept.tolist()
    assert torch.allclose(means, means_)


def test_a_model_that_reads_its_sparse_features_itself_has_no_graph(tmp_path: Path) -> None:
    class Own(nn.Module):
        def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
            return dense[:, :5] + sparse.offsets().sum()

    graph = RankingGraph(Own(), RANKING, LABELS, Tables({}))
    with pytest.raises(UserError, match=r"^model: it calls offsets\(\) on its sparse features, for which an exported"):
        graph({}, example_inputs(RANKING))


def feed_with(change: Mapping[str, Any], drop: Sequence[str] = ()) -> dict[str, np.ndarray]:
    feed = graph_inputs(random_arrays(RANKING, 3), RANKING).feed | change
    return {n: x for n, x in feed.items() if n not in drop}


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (feed_with({}, ["ids"]), "input ids: is missing"),
        (feed_with({"dense": np.zeros((3, 4), np.float32)}), "input dense: has shape [3, 4]"),
        (feed_with({"ids": np.zeros((2, 3), np.int32)}), "input ids: has shape [2, 3]"),
        (feed_with({"ids": np.zeros((3, 3))}), "input ids: has type float64"),
        (feed_with({"ids": np.full((3, 3), 99, np.int32)}), "feature user: has the id 99; ids are from 0 to 10"),
        (feed_with({"ids": np.full((3, 3), -1, np.int32)}), "feature user: has the id -1"),
        (feed_with({"tags": np.full((3, 1), -2, np.int32)}), "feature tags: has the id -2; ids are from 0 to 4"),
        (feed_with({"dense": np.full((3, 5), np.nan, np.float32)}), "input dense: holds NaN or infinite numbers"),
    ],
)
def test_wrong_features_are_refused(feed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError) as e:
        check_feed(feed, feature_inputs(RANKING), RANKING, {})
    assert str(e.value).startswith(message)
    good = feed_with({"tags": np.full((3, 2), -1, np.int32)})
    assert check_feed(good, feature_inputs(RANKING), RANKING, {}).rows == 3
