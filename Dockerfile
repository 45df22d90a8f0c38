# qgraph with ONNX Runtime and reports:
#   docker build -t qgraph .
#   docker run --rm -v "$PWD:/models" qgraph info model.onnx
# To write files into the folder, run it as its owner:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/models" qgraph fold model.onnx -o packed.onnx
FROM python:3.12-slim AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[ort,report]" && rm -r /wheels \
    && useradd --create-home user
USER user
# Matplotlib, of which each user needs a folder for its lists of fonts
ENV MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /models
ENTRYPOINT ["qgraph"]
