"""Schemas of the commands other than train."""

from typing import Annotated, Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from recsys.base.ranges import Count, Counts, Natural
from recsys.schema.data_schema import DataConfig, EngineConfig, HeardConfig
from recsys.schema.fields import (
    CHECKED,
    COUNT_OR_NAMES,
    LISTED,
    MISSING,
    Local,
    Locals,
    Name,
    Node,
    Place,
    Places,
    Texts,
    field,
)
from recsys.schema.pipeline_schema import TableConfig
from recsys.schema.run_schema import MAX_ROWS, LoaderConfig, OptimConfig, ShardingConfig, TrainerConfig

TableType = Literal["fp32", "fp16", "int8", "int4"]  # of exported tables


@dataclass(config=CHECKED)
class ClusterConfig:
    """The machines that a plan is made for. GiB are 2^30 bytes, GB/s 10^9 bytes per second."""

    name: str = "cluster"
    nodes: int = field(1, ge=1, le=2**20)
    device: Literal["cpu", "cuda"] = "cuda"
    devices: int = field(1, "per node", ge=1, le=2**20)
    hbm_gib: NonNegativeFloat | None = field(None, "per device")
    ddr_gib: PositiveFloat | None = field(None, "per node")
    hbm_gbs: NonNegativeFloat = 2000.0
    ddr_gbs: PositiveFloat = field(200.0, "per node")
    pcie_gbs: NonNegativeFloat = field(25.0, "per device")
    intra_node_gbs: PositiveFloat = field(300.0, "per device, one way")
    inter_node_gbs: PositiveFloat = field(25.0, "per device, one way")
    half_tflops: PositiveFloat | None = field(None, "of float16 and bfloat16, without sparsity")
    float32_tflops: PositiveFloat | None = field(None, "of float32")
    tf32_tflops: PositiveFloat | None = field(None, "of float32 with trainer.tf32; null for GPUs before Ampere")
    launch_us: NonNegativeFloat = field(5.0, "time of the host for the launch of a kernel")


@dataclass(config=CHECKED, kw_only=True)
class PlanConfig:
    """Config of `python -m recsys.plan`."""

    data: DataConfig
    model: dict[str, Node]
    loss: dict[str, Node] | None = None
    dims: Node = None
    numeric: dict[str, Node] | None = None
    sharding: ShardingConfig = field(ShardingConfig)
    optim: OptimConfig
    trainer: TrainerConfig = field(TrainerConfig)
    loader: LoaderConfig = field(LoaderConfig, "of experiments; a plan does not depend on it")
    cluster: ClusterConfig
    features: Local | None = field(None, "a features.json of prepared data; null: data.sparse.*.rows")
    output: Locals = field(list, "a .json or .html file, or a list of them")


@dataclass(config=CHECKED)
class PreprocessConfig(HeardConfig):
    """Config of `python -m recsys.preprocess`."""

    data: DataConfig
    engine: EngineConfig = field(EngineConfig)
    report: bool = field(False, "write an HTML page that describes the data")
    output: Local | None = field(None, "HTML file of the report; null: report.html in the folder of prepared data")
    export: Local | None = field(None, "a new folder for the data in the layout of NVIDIA's DLRM")


@dataclass(config=CHECKED)
class PredictConfig:
    """Config of `python -m recsys.predict`."""

    run: Places = field(..., "a run or, to average their predictions, a list of runs: folders, or URLs of mirrors")
    input: Texts = field(MISSING, "a file, folder or glob, or a list of them")
    output: Local = field("predictions.parquet", "a Parquet file")
    checkpoint: str = field("best", "best | last | a folder under the run's checkpoints/")
    batch_size: int | None = field(None, "rows or queries; null: trainer.eval_batch_size", ge=1, le=MAX_ROWS)
    k: Count | None = field(None, "retrieval models: length of the lists; null: the largest of the run's protocol.k")
    filter_history: bool | None = field(None, "retrieval models: leave out the history; null: the run's protocol")
    user: Any = field(None, "retrieval models: print the items for one user; input: by default the run's raw files")
    item: Any = field(None, "retrieval models: print the items most like this one, or like each of a list")
    items: Local | None = field(None, "retrieval models: a file with new items, which are candidates beside the run's")
    allow_unknown: bool = field(False, "go on where the training rows hold hardly any value of a column")


@dataclass(config=CHECKED)
class ExportConfig:
    """Config of `python -m recsys.export run=RUN_DIR output=DIR`, `... verify DIR` and `... apply BASE DELTA`."""

    action: Literal["write", "verify", "apply"] = "write"
    artefact: Local | None = field(None, "verify, apply")
    delta: Local | None = field(None, "apply")
    run: Place = field(MISSING, "the folder of a run, or the URL of its mirror")
    items: Local | None = field(None, "retrieval models: a file with new items, which are candidates beside the run's")
    output: Local = field(MISSING, "a folder to write")
    delta_from: Local | None = field(
        None, "write only what differs from this artefact, which was exported from a run that this one goes on from"
    )
    events_until: str | None = field(None, "time of the newest training event, such as 2026-03-07T12:00:00Z")
    checkpoint: str = field("best", "best | last | a folder under the run's checkpoints/")
    name: str | None = field(None, "under which a server offers the model; null: the model's class in lower case")
    version: str = field("1", "under which a server offers the model")
    format: Annotated[list[Literal["onnx", "single_graph", "torchscript", "aoti"]], LISTED] = field(
        lambda: ["onnx"], "onnx, and further forms: single_graph | torchscript | aoti, or a list"
    )
    precision: Literal["fp32", "fp16", "bf16"] = field("fp32", "type of the dense weights")
    tables: TableType = field("fp32", "type of the tables' rows")
    index: str | None = field(
        None,
        "index of a retrieval model's item vectors: auto | exact | ivf | ivf_pq | hnsw | usearch | milvus; null: none",
    )
    index_url: str | None = field(None, "the server of index=milvus, http://HOST:PORT")
    recall_target: float = field(0.98, "share of the best items that a search of it shall find", gt=0, le=1)
    rows: Texts = field(list, "files of raw rows, which are recorded and compared; null: the raw files of the run")
    triton: bool = field(False, "also write a model repository for NVIDIA Triton")
    dense_backend: Literal["onnxruntime", "pytorch", "python", "fil"] = field("onnxruntime", "of the graph in Triton")
    python_path: str = field(
        "",
        "folder from which Triton's Python imports recsys; empty: installed there | bundle: in the repository",
    )


@dataclass(config=CHECKED)
class FeatureStoreConfig:
    """Config of `python -m recsys.feature_store materialise|follow|join|get|feast`."""

    action: Literal["materialise", "follow", "join", "get", "feast"] = MISSING
    definition: Local = field(MISSING, "a YAML file of views")
    store: str = field("sqlite:///features.db", "sqlite:///PATH | redis://HOST:PORT/DB")
    until: str | None = field(None, "materialise: leave out values of later times")
    views: Texts = field(list, "follow: a view, or a list of them; null: all that have a stream")
    rejected: Local | None = field(
        None, "materialise, follow, join: append events that cannot be read to this file, instead of ending"
    )
    until_end: bool = field(False, "follow: end after the events that are there now")
    kafka_properties: Local | None = field(None, "follow: a file of key=value lines, settings of librdkafka")
    keys: Texts = field(list, "get: a key, or a list of them, to look up")
    input: Local | None = field(None, "join: a Parquet file of rows or, for engine=spark, a folder of them")
    time: str | None = field(None, "join: the column with the time of each row")
    output: Local | None = field(
        None, "join: the Parquet file (for engine=spark, folder) to write; feast: the folder; it must not exist yet"
    )
    engine: EngineConfig = field(EngineConfig, "join: engine=polars | engine=spark")


@dataclass(config=CHECKED)
class RegistryConfig:
    """Config of `python -m recsys.registry list|show|promote|rollback`."""

    action: Literal["list", "show", "promote", "rollback"] = MISSING
    root: Local = field(MISSING, "folder of models, NAME/VERSION")
    name: str | None = field(None, "name of the model; null: the only one, or for list all of them")
    version: str | None = field(None, "show, promote: the version")
    why: str = field("", "promote, rollback: one sentence for the history")
    mlflow: str | None = field(
        None, "address of an MLflow server, or a database, that gets the versions and aliases, too"
    )
    wandb: bool = field(False, "set the aliases of the versions' W&B artifacts, too")


@dataclass(config=CHECKED)
class FollowCommandConfig(HeardConfig):
    """Config of `python -m recsys.follow FILE`, `status FILE` and `demo`."""

    action: Literal["run", "status", "demo"] = "run"
    file: Local | None = field(None, "run, status: the settings")
    cycles: Count | None = field(None, "run: the most cycles to end in one look; null: no limit")
    watch: bool = field(False, "run: look again and again, until the process is stopped")
    seconds: PositiveFloat = field(60.0, "run: time between two looks")
    readmit: list[str] = field(list, "run: refused or rejected partitions to look at again")
    recover: bool = field(False, "run: make a state.json that agrees with the registry")
    root: Local | None = field(None, "demo: a new folder")
    seed: Natural = field(0, "demo: of the sample")


@dataclass(config=CHECKED)
class ReshardTrainerConfig:
    """Trainer settings of `recsys.checkpoint reshard`."""

    devices: Count | None = field(None, "number of processes; null: the number that wrote the checkpoint")


@dataclass(config=CHECKED)
class CheckpointToolConfig:
    """Config of `python -m recsys.checkpoint inspect|reshard|export-embeddings RUN_DIR`."""

    action: Literal["inspect", "reshard", "export-embeddings"] = MISSING
    run: Place = field(MISSING, "the folder of a run, or the URL of its mirror")
    checkpoint: str = field("last", "best | last | a folder under the run's checkpoints/")
    output: Local | None = field(None, "folder to write: a new run folder (reshard) or the tables (export-embeddings)")
    sharding: ShardingConfig | None = field(None, "reshard; null: the run's sharding")
    trainer: ReshardTrainerConfig = field(ReshardTrainerConfig)
    format: Literal["parquet", "safetensors"] = field("parquet", "of export-embeddings")
    tables: list[str] = field(list, "export-embeddings: globs; empty: all")


@dataclass(config=CHECKED)
class ReportConfig:
    """Config of `python -m recsys.report RUN_DIR... [SWEEP_DIR]`."""

    runs: list[Place] = field(list, "folders of runs or sweeps, URLs of mirrors; runs are compared with the first")
    output: Local = field("report.html", "an HTML file")
    resamples: int = field(1000, "number of bootstrap resamples", ge=100, le=10**7)
    seed: Natural = field(0, "seed of the bootstrap, and of pick=random")
    users: Annotated[int | list[str] | None, COUNT_OR_NAMES] = field(None, "show lists of users: 5, or [7,42]")
    pick: Literal["difference", "random"] = field("difference", "users: for whom the first two runs differ most | any")
    similar: Count | None = field(None, "show the items most like so many of the most frequent ones", le=1000)
    k: Count = field(10, "users, similar: length of the lists", le=1000)
    items: TableConfig | None = field(None, "users, similar: a table of items, the ids first; null: that of the data")


@dataclass(config=CHECKED)
class DashboardConfig:
    """Config of `python -m recsys.dashboard`."""

    project: str = field("recsys", "the project in W&B")
    entity: str | None = field(None, "a team; null: the account's default")
    name: str = field("recsys", "the workspace's name")
    columns: list[str] = field(
        lambda: ["model._target_", "optim.sparse.lr", "optim.dense.lr", "trainer.batch_size"],
        "config keys shown as axes of the parallel coordinates plot",
    )
    metric: str = field("best/test/auc", "key of a run's summary by which runs are sorted")
    output: Local = field("dashboard.json", "file of the definition, written if you are not logged in to W&B")


@dataclass(config=CHECKED)
class CreateConfig:
    """The object that `python -m recsys.new` creates: exactly one of these."""

    data: str | None = field(None, "conf/data/NAME.yaml, from `files`")
    model: str | None = field(None, "NAME.py and conf/model/NAME.yaml")
    experiment: str | None = field(None, "conf/experiment/NAME.yaml")


@dataclass(config=CHECKED)
class NewConfig:
    """Config of `python -m recsys.new data=NAME files=FILES [label=COLUMN]`, `model=NAME` and `experiment=NAME`."""

    create: CreateConfig = field(CreateConfig, "on the command line without `create.`")
    files: Texts = field(list, "a file, folder or glob, or a list of them")
    label: str | None = field(
        "auto",
        "the column, or columns; auto: choose | null: there is none (without a label, the data are for retrieval)",
    )
    user: str | None = field("auto", "the column of users, as above")
    item: str | None = field("auto", "the column of items, as above")
    time: str | None = field("auto", "the column of times, as above")
    positive: Texts | None = field(
        lambda: ["auto"], "the value, or values, of the label that are positive; null: each value is a class"
    )
    header: bool | None = field(None, "whether the first line of text names the columns; null: look at it")
    kind: Literal["ranking", "retrieval"] = field("ranking", "of a new model")
    yes: bool = field(False, "take the likeliest answer where the files do not tell, instead of asking")


@dataclass(config=CHECKED)
class DoctorConfig:
    """Config of `python -m recsys.doctor`."""

    data: DataConfig


@dataclass(config=CHECKED)
class ServeConfig:
    """Config of `python -m recsys.serve MODEL`."""

    models: Local = field(
        MISSING,
        "An exported model, or a folder of models NAME/VERSION; typed as FOLDER or model=FOLDER, which is a "
        "group in conf/.",
    )
    pipeline_file: Local | None = field(
        None, "Instead of a model: the YAML file of a pipeline of stages (recsys.pipeline); typed as pipeline=FILE."
    )
    overrides: list[str] = field(list, "of the pipeline's keys, such as [root=DIR,order=dpp]")
    host: Name = field("127.0.0.1", "address of this machine to listen on")
    port: int = field(8000, "HTTP; 0: a free port", ge=0, le=65535)
    grpc_port: int | None = field(8001, "0: a free port; null: no gRPC", ge=0, le=65535)
    workers: int = field(1, "number of processes that share the ports", ge=1, le=1024)
    threads: int = field(1, "number of threads of a model in each worker", ge=1, le=4096)
    device: Literal["auto", "cpu", "cuda"] = field(
        "auto", "auto: a GPU if onnxruntime has CUDA's provider and finds one | cpu | cuda"
    )
    # batching
    max_batch: int = field(1024, "most rows of a batch", ge=1, le=2**20)
    max_delay_us: int = field(0, "how long a batch waits for more rows", ge=0, le=10**7)
    preferred_batch: list[int] = field(list, "numbers of rows that a batch should have")
    queue: int = field(16384, "most rows that wait for a model", ge=1, le=2**24)
    timeout_us: Count | None = field(None, "deadline of requests that name none")
    # versions, if the folder is that of one model
    canary: Name | None = field(None, "FOLDER:SHARE, such as models/new:0.05")
    shadow: Local | None = field(None, "folder of an exported model that computes the same requests, and never answers")
    # security and limits
    token: str | None = field(None, "requests need `Authorization: Bearer TOKEN`")
    allowed_hosts: list[str] = field(
        list, "names that requests may have in `Host` and `Origin`, such as that of a proxy; [*]: any, as with a token"
    )
    tls_cert: Local | None = field(None, "PEM file of the certificate")
    tls_key: Local | None = field(None, "PEM file of its key")
    max_body_mb: int = field(16, "MiB of a request", ge=1, le=2**11 - 1)
    max_rows: int = field(4096, "most rows, or queries, of a request", ge=1, le=2**20)
    max_list: int = field(10_000, "most elements of a value that is a list", ge=1, le=2**24)
    max_header_kb: int = field(32, "KiB of headers", ge=1, le=1024)
    read_s: PositiveFloat = field(10.0, "how long the headers of a request, and its body, may take")
    drain_s: NonNegativeFloat = field(10.0, "how long a stopped server answers what it has")
    definition: Local | None = field(
        None, "a YAML file of views: stored features, which are joined to the rows of requests (recsys.feature_store)"
    )
    store: str = field("sqlite:///features.db", "sqlite:///PATH | redis://HOST:PORT/DB")
    # logs
    log: Literal["errors", "requests"] = "errors"
    sample: float = field(0.0, "share of the requests that are written to sample_dir", ge=0, le=1)
    sample_dir: Local | None = field(None, "folder of Parquet files")
    feedback: Local | None = field(None, "folder of JSON lines of what POST /feedback gets")
    feedback_wait_s: PositiveFloat = field(300.0, "after which a request without a click has none", le=10**7)
    feedback_window: int = field(200_000, "most requests that wait for their feedback", ge=1, le=10**8)
    traces: Name | None = field(
        None, "an OpenTelemetry collector (OTLP over HTTP) that gets spans of requests, such as http://localhost:4318"
    )
    trace_share: float = field(1.0, "share of the requests without a traceparent", ge=0, le=1)
    loader: str = field("recsys.export.artefact:load", "MODULE:FUNCTION that returns the Servable of a folder")


@dataclass(config=CHECKED)
class LoadTestConfig:
    """Config of `python -m recsys.loadtest`."""

    target: Name = field(MISSING, "a server, such as http://127.0.0.1:8000")
    model_name: Name | None = field(None, "typed as model=NAME, a group in conf/; null: the server's only model")
    version: Name | None = field(None, "null: the version that answers by default")
    rows: Local = field(MISSING, "a CSV, JSON lines or Parquet file of raw rows, or the folder of an exported model")
    protocol: Literal["http", "grpc", "rows"] = field(
        "http", "http | grpc: the open inference protocol v2 | rows: /predict, /recommend of recsys.serve"
    )
    binary: bool = field(True, "http: send the tensors in binary form; false: in JSON")
    token: str | None = field(None, "sent as `Authorization: Bearer TOKEN`")
    tls_ca: Local | None = field(None, "of the authorities that are trusted; null: the system's")
    concurrency: Annotated[Counts, LISTED] = field(
        lambda: [1, 2, 4, 8, 16],
        "closed loop: numbers of connections, each of which sends its next request after the answer",
    )
    batch_sizes: Annotated[Counts, LISTED] = field(lambda: [1, 8, 64], "rows of a request")
    rate: Annotated[list[PositiveFloat], LISTED] = field(list, "open loop: requests per second, instead of concurrency")
    arrivals: Literal["poisson", "fixed"] = field("poisson", "of the open loop")
    connections: int = field(64, "open loop", ge=1, le=65536)
    seconds: PositiveFloat = field(5.0, "of each measurement", le=86400)
    warmup_s: NonNegativeFloat = field(1.0, "before each measurement, with the same load", le=86400)
    timeout_s: PositiveFloat = field(5.0, "of a request, from when it is due", le=86400)
    same_values: bool = field(
        True, "count an answer as an error if its values differ from the first answer's; false: do not"
    )
    processes: int = field(1, "client processes", ge=1, le=1024)
    slo_ms: PositiveFloat | None = field(None, "report the most rows per second whose p99 is within this")
    metrics: Name | None = field(None, "of the server")
    output: Local | None = field(None, "for results.csv, results.json and load_test.html")
