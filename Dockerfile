# docker build -t mtf .                              CPU
# docker build -t mtf --build-arg EXTRAS=cuda .      NVIDIA GPUs; several extras: EXTRAS=cuda,tasks
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:${PYTHON}-slim
ARG EXTRAS=
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir "$(echo /wheel/*.whl)${EXTRAS:+[$EXTRAS]}" \
    && rm -r /wheel \
    && useradd --create-home --uid 1000 mtf \
    && install --directory --owner mtf /work
USER 1000
WORKDIR /work
ENTRYPOINT ["mtf"]
CMD ["doctor"]
