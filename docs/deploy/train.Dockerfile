# An image for training. Build it in the root of the repository:
#
#     docker build -f docs/deploy/train.Dockerfile -t recsys-train .
#     docker build -f docs/deploy/train.Dockerfile -t recsys-train --build-arg FBGEMM=fbgemm-gpu .     # NVIDIA GPUs
#     docker run --rm --shm-size=1g -v "$PWD/work:/work" recsys-train model=dlrm data=criteo
#
# With GPUs, add --gpus all. The user 10001 must be able to write to the folder that becomes /work: data and results are
# there. Extras: --build-arg EXTRAS=export,s3
#
# PyTorch on PyPI requires 3.5 GB of CUDA libraries, also for the CPU. --build-arg TORCH_INDEX=URL takes torch alone from
# an index whose builds need none, such as PyTorch's own for the CPU; constraints.txt has no hash of that build. An index
# of your own for the rest, which the image does not remember: --secret id=pip,src=pip.conf --secret id=uv,src=uv.toml
#
# The tag of the base image moves with each rebuild of it; `just digests` pins what it names today: NAME@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_NO_CACHE=1 VIRTUAL_ENV=/opt/recsys
WORKDIR /build
COPY docs/deploy/constraints.txt ./
# Each package has the version and a hash of constraints.txt, uv itself too.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf awk '/^[^ ]/ {uv = /^uv==/} uv' constraints.txt > uv.txt && \
    pip install --no-cache-dir --require-hashes -r uv.txt && uv venv --python python3 "$VIRTUAL_ENV"
# Not the working directory: its exclude-newer would refuse an index that tells no dates.
COPY . source
RUN --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    uv build --wheel --build-constraint constraints.txt --require-hashes --out-dir /wheels source
ARG FBGEMM=fbgemm-gpu-cpu
ARG EXTRAS=
ARG TORCH_INDEX=
RUN if [ -n "$TORCH_INDEX" ]; then uv pip install --no-deps --index-url "$TORCH_INDEX" torch==2.13.0; fi
RUN --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    uv pip install -c constraints.txt "$(echo /wheels/*.whl)${EXTRAS:+[$EXTRAS]}" && \
    uv pip install -c constraints.txt --no-deps torchrec==1.8.0 ${FBGEMM}==1.8.0

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/recsys/bin:$PATH PYTHONUNBUFFERED=1
# Triton builds its launcher at run time with a C compiler, the libraries' headers, and Python's, which are in the base
# image; trainer.compile=true on the CPU needs C++. Boosted trees load the system's OpenMP.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libc6-dev libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/recsys /opt/recsys
RUN useradd --uid 10001 --create-home recsys && mkdir /work && chown recsys /work
USER 10001
WORKDIR /work
ENTRYPOINT ["python", "-m", "recsys.train"]
CMD ["--help"]
