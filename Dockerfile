# gcnbatch for NVIDIA GPUs; the container needs only the driver of the host (580 or newer) and the NVIDIA Container Toolkit.
#   docker build -t gcnbatch .
#   docker run --rm gcnbatch train --backend cpu
#   docker run --rm --gpus all -v "$PWD:/data" -v gcnbatch-kernels:/cache gcnbatch train --data molecules.h5
# For a driver older than 580: docker build --build-arg NVRTC=nvrtc12 -t gcnbatch .
FROM python:3.12-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# PyCUDA is built against headers of CUDA 12.9 and a stub of the driver, so it runs with every driver for CUDA 12 and 13.
RUN GCNBATCH_WHEELS=/wheels .ci/build_pycuda \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
ARG NVRTC=nvrtc13
# RDKit draws molecules with these libraries.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libexpat1 libxext6 libxrender1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
# hadolint ignore=DL3013
RUN wheel=$(ls /wheels/gcnbatch-*.whl) \
    && pip install --no-cache-dir --find-links /wheels "${wheel}[chem,fast,tables,tune,tensorboard,cuda,$NVRTC]" \
    && useradd --create-home --uid 1000 gcnbatch \
    && mkdir /data /cache \
    && chown gcnbatch:gcnbatch /data /cache
# The toolkit mounts the driver; kernels are compiled once, into /cache.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility GCNBATCH_CACHE_DIR=/cache
USER 1000
WORKDIR /data
ENTRYPOINT ["gcnbatch"]
CMD ["--help"]
