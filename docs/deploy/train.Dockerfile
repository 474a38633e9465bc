# An image for training. Build it in the root of the repository:
#
#     docker build -f docs/deploy/train.Dockerfile -t recsys-train .
#     docker build -f docs/deploy/train.Dockerfile -t recsys-train --build-arg FBGEMM=fbgemm-gpu .     # NVIDIA GPUs
#     docker run --rm --shm-size=1g -v "$PWD/work:/work" recsys-train model=dlrm data=criteo
#
# With GPUs, add --gpus all. The user 10001 must be able to write to the folder that becomes /work: data and results are
# there. Extras: --build-arg EXTRAS=export,s3
FROM python:3.11-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir uv && uv build

FROM python:3.11-slim
ARG FBGEMM=fbgemm-gpu-cpu
ARG EXTRAS=
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
# boosted trees load the system's OpenMP
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/dist dist
RUN pip install dist/declarative_recsys-*.whl
RUN pip install --no-deps torchrec==1.8.0 ${FBGEMM}==1.8.0
RUN if [ -n "$EXTRAS" ]; then pip install "$(echo dist/declarative_recsys-*.whl)[$EXTRAS]"; fi
RUN useradd --uid 10001 --create-home recsys && mkdir /work && chown recsys /work
USER 10001
WORKDIR /work
ENTRYPOINT ["python", "-m", "recsys.train"]
CMD ["--help"]
