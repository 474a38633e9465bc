"""Schemas of the commands other than train."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from recsys.ranges import folder, number
from recsys.schema.data_schema import DataConfig, EngineConfig
from recsys.schema.run_schema import MOST_ROWS, OptimConfig, ShardingConfig, TrainerConfig


@dataclass
class ClusterConfig:
    """The machines that a plan is made for. GiB are 2^30 bytes, GB/s 10^9 bytes per second."""

    name: str = MISSING
    nodes: int = number(1, at_least=1, limit=2**20)
    device: str = "cuda"  # cuda | cpu
    devices: int = number(1, at_least=1, limit=2**20)  # per node
    hbm_gib: float | None = number(None, at_least=0)  # per device
    ddr_gib: float | None = number(None, above=0)  # per node
    hbm_gbs: float = number(2000.0, at_least=0)
    ddr_gbs: float = number(200.0, above=0)  # per node
    pcie_gbs: float = number(25.0, at_least=0)  # per device
    intra_node_gbs: float = number(300.0, above=0)  # per device, one way
    inter_node_gbs: float = number(25.0, above=0)  # per device, one way
    # peak of a device's matrix products; null: only the time in the tables is predicted
    half_tflops: float | None = number(None, above=0)  # of float16 and bfloat16, without sparsity
    float32_tflops: float | None = number(None, above=0)  # of float32
    tf32_tflops: float | None = number(None, above=0)  # of float32 with trainer.tf32; null for GPUs before Ampere
    launch_us: float = number(5.0, at_least=0)  # time of the host for the launch of a kernel


@dataclass
class EvaluateTrainerConfig:
    """Trainer settings that replace the run's; null keeps the run's setting."""

    accelerator: str | None = None
    devices: int | None = number(None, at_least=1)
    eval_batch_size: int | None = number(None, at_least=1, limit=MOST_ROWS)
    threads: int | None = number(None, at_least=1, limit=4096)


@dataclass
class EvaluateProtocolConfig:
    """Protocol settings that replace the run's; null keeps the run's setting."""

    candidates: list[str] | None = None
    k: list[int] | None = None
    negatives: int | None = number(None, at_least=1)
    filter_history: bool | None = None
    seed: int | None = number(None, at_least=0)
    lists: list[str] | None = None


@dataclass
class EvaluateMetricsConfig:
    """Metric settings that replace the run's; null keeps the run's setting."""

    gauc: str | None = None
    k: list[int] | None = None
    slices: list[str] | None = None
    slice_values: int | None = number(None, at_least=1)
    bins: int | None = number(None, at_least=1, limit=1_000_000)
    exact_rows: int | None = number(None, at_least=1, limit=2**53)


@dataclass
class EvaluateConfig:
    """Config of `python -m recsys.evaluate`."""

    # a run or, to average their predictions, a list of runs
    run: Any = folder(MISSING, "name the folder of a run")  # noqa: RUF009
    split: str = "test"  # train | validation | test
    checkpoint: str = "best"  # best | last | a folder under the run's checkpoints/
    trainer: EvaluateTrainerConfig = field(default_factory=EvaluateTrainerConfig)
    protocol: EvaluateProtocolConfig = field(default_factory=EvaluateProtocolConfig)
    metrics: EvaluateMetricsConfig = field(default_factory=EvaluateMetricsConfig)
    sharding: ShardingConfig | None = None  # null: the run's sharding


@dataclass
class PlanConfig:
    """Config of `python -m recsys.plan`."""

    data: DataConfig = MISSING
    model: Any = MISSING
    loss: Any = None
    dims: Any = None
    numeric: Any = None
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    features: str | None = None  # a features.json of prepared data; null: data.sparse.*.rows
    output: Any = None  # a .json or .html file, or a list of them


@dataclass
class PreprocessConfig:
    """Config of `python -m recsys.preprocess`."""

    data: DataConfig = MISSING
    engine: EngineConfig = field(default_factory=EngineConfig)
    report: bool = False  # write an HTML page that describes the data
    output: str | None = None  # HTML file of the report; null: report.html in the folder of prepared data
    export: str | None = None  # a new folder for the data in the layout of NVIDIA's DLRM


@dataclass
class PredictConfig:
    """Config of `python -m recsys.predict`."""

    # a run or, to average their predictions, a list of runs
    run: Any = folder(MISSING, "name the folder of a run")  # noqa: RUF009
    input: Any = MISSING  # a file, folder or glob, or a list of them
    output: str = folder("predictions.parquet", "name a Parquet file")
    checkpoint: str = "best"  # best | last | a folder under the run's checkpoints/
    # number of rows or queries per batch; null: the run's trainer.eval_batch_size
    batch_size: int | None = number(None, at_least=1, limit=MOST_ROWS)
    # retrieval models: length of the lists; null: the largest of the run's protocol.k
    k: int | None = number(None, at_least=1)
    filter_history: bool | None = None  # retrieval models: leave out the history; null: the run's protocol
    user: Any = None  # retrieval models: print the items for one user; input is then the run's own raw files by default


@dataclass
class ExportConfig:
    """Config of `python -m recsys.export run=RUN_DIR output=DIR`, `... verify DIR` and `... apply BASE DELTA`."""

    action: str = "write"  # write | verify | apply
    artefact: str | None = folder(None, "name the folder of an artefact")  # verify, apply
    delta: str | None = folder(None, "name the folder of a delta")  # apply
    run: str = folder(MISSING, "name the folder of a run")
    output: str = folder(MISSING, "name a folder to write")
    # write only what differs from this artefact, which was exported from a run that this one goes on from
    delta_from: str | None = folder(None, "name the folder of an artefact")
    events_until: str | None = None  # time of the newest training event, such as 2026-03-07T12:00:00Z
    checkpoint: str = "best"  # best | last | a folder under the run's checkpoints/
    name: str | None = None  # under which a server offers the model; null: the model's class in lower case
    version: str = "1"  # under which a server offers the model
    format: Any = "onnx"  # onnx, and further forms: single_graph | torchscript | aoti, or a list
    precision: str = "fp32"  # type of the dense weights: fp32 | fp16 | bf16
    tables: str = "fp32"  # type of the tables' rows: fp32 | fp16 | int8 | int4
    # index of a retrieval model's item vectors: auto | exact | ivf | ivf_pq | hnsw | usearch | milvus; null: none
    index: str | None = None
    index_url: str | None = None  # the server of index=milvus, http://HOST:PORT
    recall_target: float = number(0.98, above=0, at_most=1)  # share of the best items that a search of it shall find
    # files of raw rows, which are recorded and compared; null: the raw files of the run
    rows: Any = None
    triton: bool = False  # also write a model repository for NVIDIA Triton
    dense_backend: str = "onnxruntime"  # Triton's backend of the graph: onnxruntime | pytorch | python | fil
    # folder from which Triton's Python imports recsys; empty: it is installed there | bundle: the repository carries it
    python_path: str = ""


@dataclass
class FeatureStoreConfig:
    """Config of `python -m recsys.feature_store materialise|follow|join|get|feast`."""

    action: str = MISSING  # materialise | follow | join | get | feast
    definition: str = MISSING  # a YAML file of views
    store: str = "sqlite:///features.db"  # sqlite:///PATH | redis://HOST:PORT/DB
    until: str | None = None  # materialise: leave out values of later times
    views: Any = None  # follow: a view, or a list of them; null: all that have a stream
    # materialise, follow, join: append events that cannot be read to this file, instead of ending
    rejected: str | None = None
    until_end: bool = False  # follow: end after the events that are there now
    kafka_properties: str | None = None  # follow: a file of key=value lines, settings of librdkafka
    keys: Any = None  # get: a key, or a list of them, to look up
    input: str | None = None  # join: a Parquet file of rows or, for engine=spark, a folder of them
    time: str | None = None  # join: the column with the time of each row
    # join: the Parquet file (for engine=spark, folder) to write; feast: the folder; it must not exist yet
    output: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)  # join: engine=polars | engine=spark


@dataclass
class RegistryConfig:
    """Config of `python -m recsys.registry list|show|promote|rollback`."""

    action: str = MISSING  # list | show | promote | rollback
    root: str = folder(MISSING, "name the folder of models")  # folder of models, NAME/VERSION
    name: str | None = None  # name of the model; null: the only one, or for list all of them
    version: str | None = None  # show, promote: the version
    why: str = ""  # promote, rollback: one sentence for the history
    mlflow: str | None = None  # address of an MLflow server, or a database, that gets the versions and aliases, too
    wandb: bool = False  # set the aliases of the versions' W&B artifacts, too


@dataclass
class FollowCommandConfig:
    """Config of `python -m recsys.follow FILE`, `status FILE` and `demo`."""

    action: str = "run"  # run | status | demo
    file: str | None = folder(None, "name the YAML file of continuous training")  # run, status: the settings
    cycles: int | None = number(None, at_least=1)  # run: the most cycles to end in one look; null: no limit
    watch: bool = False  # run: look again and again, until the process is stopped
    seconds: float = number(60.0, above=0)  # run: time between two looks
    readmit: list[str] = field(default_factory=list)  # run: refused or rejected partitions to look at again
    root: str | None = folder(None, "name a folder")  # demo: a new folder
    seed: int = number(0, at_least=0)  # demo: of the sample


@dataclass
class ReshardTrainerConfig:
    """Trainer settings of `recsys.checkpoint reshard`."""

    devices: int | None = number(None, at_least=1)  # number of processes; null: the number that wrote the checkpoint


@dataclass
class CheckpointToolConfig:
    """Config of `python -m recsys.checkpoint inspect|reshard|export-embeddings RUN_DIR`."""

    action: str = MISSING  # inspect | reshard | export-embeddings
    run: str = folder(MISSING, "name the folder of a run")
    checkpoint: str = "last"  # best | last | a folder under the run's checkpoints/
    # folder to write: a new run folder (reshard) or the tables (export-embeddings)
    output: str | None = folder(None, "name a folder to write")
    sharding: ShardingConfig | None = None  # reshard; null: the run's sharding
    trainer: ReshardTrainerConfig = field(default_factory=ReshardTrainerConfig)
    format: str = "parquet"  # export-embeddings: parquet | safetensors
    tables: list[str] = field(default_factory=list)  # export-embeddings: globs; empty: all


@dataclass
class ReportConfig:
    """Config of `python -m recsys.report RUN_DIR... [SWEEP_DIR]`."""

    runs: list[str] = field(default_factory=list)  # folders of runs or sweeps; runs are compared with the first
    output: str = folder("report.html", "name an HTML file")
    resamples: int = number(1000, at_least=100, limit=10**7)  # number of bootstrap resamples
    seed: int = number(0, at_least=0)  # seed of the bootstrap


@dataclass
class DashboardConfig:
    """Config of `python -m recsys.dashboard`."""

    project: str = "recsys"  # the project in W&B
    entity: str | None = None  # a team; null: the account's default
    name: str = "recsys"  # the workspace's name
    columns: list[str] = field(  # config keys shown as axes of the parallel coordinates plot
        default_factory=lambda: ["model._target_", "optim.sparse.lr", "optim.dense.lr", "trainer.batch_size"]
    )
    metric: str = "best/test/auc"  # key of a run's summary by which runs are sorted
    output: str = "dashboard.json"  # file of the definition, written if you are not logged in to W&B


@dataclass
class CreateConfig:
    """The object that `python -m recsys.new` creates: exactly one of these."""

    data: str | None = None  # conf/data/NAME.yaml, from `files`
    model: str | None = None  # NAME.py and conf/model/NAME.yaml
    experiment: str | None = None  # conf/experiment/NAME.yaml


@dataclass
class NewConfig:
    """Config of `python -m recsys.new data=NAME files=FILES [label=COLUMN]`, `model=NAME` and `experiment=NAME`."""

    create: CreateConfig = field(default_factory=CreateConfig)  # on the command line without `create.`
    files: Any = None  # a file, folder or glob, or a list of them
    # the column, or columns; auto: choose | null: there is none (without a label, the data are for retrieval)
    label: str | None = "auto"
    user: str | None = "auto"  # the column of users, as above
    item: str | None = "auto"  # the column of items, as above
    time: str | None = "auto"  # the column of times, as above
    positive: Any = "auto"  # the value, or values, of the label that are positive; null: each value is a class
    header: bool | None = None  # whether the first line of text names the columns; null: look at it
    kind: str = "ranking"  # of a new model: ranking | retrieval
    yes: bool = False  # take the likeliest answer where the files do not tell, instead of asking


@dataclass
class DoctorConfig:
    """Config of `python -m recsys.doctor`."""

    data: DataConfig = MISSING


@dataclass
class ServeConfig:
    """Config of `python -m recsys.serve MODEL`."""

    # An exported model, or a folder of models NAME/VERSION; typed as FOLDER or model=FOLDER, which is a group in conf/.
    models: str = folder(MISSING, "name the folder of an exported model")
    # Instead of a model: the YAML file of a pipeline of stages (recsys.pipeline); typed as pipeline=FILE.
    pipeline_file: str | None = folder(None, "name the YAML file of a pipeline")
    overrides: list[str] = field(default_factory=list)  # of the pipeline's keys, such as [root=DIR,order=dpp]
    host: str = folder("127.0.0.1", "name an address, such as 127.0.0.1")  # address of this machine to listen on
    port: int = number(8000, at_least=0, at_most=65535)  # HTTP; 0: a free port
    grpc_port: int | None = number(8001, at_least=0, at_most=65535)  # 0: a free port; null: no gRPC
    workers: int = number(1, at_least=1, limit=1024)  # number of processes that share the ports
    threads: int = number(1, at_least=1, limit=4096)  # number of threads of a model in each worker
    device: str = "auto"  # auto: a GPU if onnxruntime has CUDA's provider and finds one | cpu | cuda
    # batching
    max_batch: int = number(1024, at_least=1, limit=2**20)  # most rows of a batch
    max_delay_us: int = number(0, at_least=0, limit=10**7)  # how long a batch waits for more rows
    preferred_batch: list[int] = field(default_factory=list)  # numbers of rows that a batch should have
    queue: int = number(16384, at_least=1, limit=2**24)  # most rows that wait for a model
    timeout_us: int | None = number(None, at_least=1)  # deadline of requests that name none
    # versions, if the folder is that of one model
    canary: str | None = folder(None, "write FOLDER:SHARE")  # FOLDER:SHARE, such as models/new:0.05
    # folder of an exported model that computes the same requests, and never answers
    shadow: str | None = folder(None, "name the folder of an exported model")
    # security and limits
    token: str | None = None  # requests need `Authorization: Bearer TOKEN`
    # names that requests may have in `Host` and `Origin`, such as that of a proxy; [*]: any, as with a token
    allowed_hosts: list[str] = field(default_factory=list)
    tls_cert: str | None = folder(None, "name a PEM file")  # PEM file of the certificate
    tls_key: str | None = folder(None, "name a PEM file")  # PEM file of its key
    max_body_mb: int = number(16, at_least=1, limit=2**11 - 1)  # MiB of a request
    max_rows: int = number(4096, at_least=1, limit=2**20)  # most rows, or queries, of a request
    max_list: int = number(10_000, at_least=1, limit=2**24)  # most elements of a value that is a list
    max_header_kb: int = number(32, at_least=1, limit=1024)  # KiB of headers
    read_s: float = number(10.0, above=0)  # how long the headers of a request, and its body, may take
    drain_s: float = number(10.0, at_least=0)  # how long a stopped server answers what it has
    # a YAML file of views: stored features, which are joined to the rows of requests (recsys.feature_store)
    definition: str | None = folder(None, "name a YAML file of views")
    store: str = "sqlite:///features.db"  # sqlite:///PATH | redis://HOST:PORT/DB
    # logs
    log: str = "errors"  # errors | requests
    sample: float = number(0.0, at_least=0, at_most=1)  # share of the requests that are written to sample_dir
    sample_dir: str | None = folder(None, "name a folder")  # folder of Parquet files
    feedback: str | None = folder(None, "name a folder")  # folder of JSON lines of what POST /feedback gets
    feedback_wait_s: float = number(300.0, above=0, limit=10**7)  # after which a request without a click has none
    feedback_window: int = number(200_000, at_least=1, limit=10**8)  # most requests that wait for their feedback
    # an OpenTelemetry collector (OTLP over HTTP) that gets spans of requests, such as http://localhost:4318
    traces: str | None = folder(None, "write an address, such as http://localhost:4318")
    trace_share: float = number(1.0, at_least=0, at_most=1)  # share of the requests without a traceparent
    loader: str = "recsys.export.artefact:load"  # MODULE:FUNCTION that returns the Servable of a folder


@dataclass
class LoadTestConfig:
    """Config of `python -m recsys.loadtest`."""

    target: str = folder(MISSING, "name a server, such as http://127.0.0.1:8000")
    # typed as model=NAME, which is a group in conf/; null: the server's only model
    model_name: str | None = folder(None, "name a model")
    version: str | None = folder(None, "name a version")  # null: the version that answers by default
    # a CSV, JSON lines or Parquet file of raw rows, or the folder of an exported model
    rows: str = folder(MISSING, "name a file of rows")
    protocol: str = "http"  # http | grpc: the open inference protocol v2 | rows: /predict, /recommend of recsys.serve
    binary: bool = True  # http: send the tensors in binary form; false: in JSON
    token: str | None = None  # sent as `Authorization: Bearer TOKEN`
    tls_ca: str | None = folder(None, "name a PEM file")  # of the authorities that are trusted; null: the system's
    # A number or a list. Closed loop: numbers of connections, each of which sends its next request after the answer.
    concurrency: Any = field(default=None, metadata=number(None, at_least=1, limit=65536).metadata)
    batch_sizes: Any = field(default=None, metadata=number(None, at_least=1, limit=2**20).metadata)  # rows of a request
    rate: Any = field(default=None, metadata=number(None, above=0, limit=10**7).metadata)  # open loop: requests/s
    arrivals: str = "poisson"  # open loop: poisson | fixed
    connections: int = number(64, at_least=1, limit=65536)  # open loop
    seconds: float = number(5.0, above=0, limit=86400)  # of each measurement
    warmup_s: float = number(1.0, at_least=0, limit=86400)  # before each measurement, with the same load
    timeout_s: float = number(5.0, above=0, limit=86400)  # of a request, from when it is due
    same_values: bool = True  # count an answer as an error if its values differ from the first answer's; false: do not
    processes: int = number(1, at_least=1, limit=1024)  # client processes
    slo_ms: float | None = number(None, above=0)  # report the most rows per second whose p99 is within this
    metrics: str | None = folder(None, "write an address, such as http://127.0.0.1:8002/metrics")  # of the server
    output: str | None = folder(None, "name a folder")  # for results.csv, results.json and load_test.html
