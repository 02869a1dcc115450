# Two stages: the first builds an environment with the broker's own dependencies (no Spark, no
# tools), the second holds just that on a slim Python. BASE is an argument so that a house image
# can stand in for the public one; it needs Python 3.11 or newer at the same path in both stages.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# Of pyproject.toml; also tiered and otel. Kerberos is built against the system's headers;
# --build-arg EXTRAS= leaves all extras out.
ARG EXTRAS=kerberos,keystores,oauth
RUN case ",${EXTRAS}," in *,kerberos,*) build="gcc libc6-dev libkrb5-dev python3-dev" ;; esac \
    && apt-get update && apt-get install -y --no-install-recommends binutils $build
WORKDIR /src
RUN python3 -m venv /opt/ottla
# What is installed is what these hashes say, whatever an index has.
COPY deploy/image/*.txt ./
RUN pip="/opt/ottla/bin/pip install --no-cache-dir --require-hashes" \
    && $pip -r constraints.txt \
    && for extra in $(echo "${EXTRAS}" | sed s/keystores/oauth/ | tr , ' '); do \
        $pip -r "constraints-$extra.txt" || exit 1; done \
    # Wheels have symbols for debuggers, and Pygments 500 languages: `ottla` shows Python at most.
    && find /opt/ottla -name '*.so*' -type f -exec strip --strip-unneeded {} + \
    && find /opt/ottla -path '*/pygments/lexers/*' -type f \
        ! -name '__init__.*' ! -name '_mapping.*' ! -name 'python.*' -delete
COPY pyproject.toml setup.py README.md LICENSE ./
COPY ottla ottla
COPY protocol protocol
COPY storage storage
COPY controller controller
COPY broker broker
COPY cli cli
COPY pyspark_ottla pyspark_ottla
RUN /opt/ottla/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/ottla/bin/pip uninstall --yes pip setuptools \
    && find /opt/ottla -name tests -type d -prune -exec rm -rf {} + \
    && /opt/ottla/bin/python -m compileall -q /opt/ottla

FROM ${BASE}
ARG EXTRAS=kerberos,keystores,oauth
RUN case ",${EXTRAS}," in *,kerberos,*) apt-get update \
    && apt-get install -y --no-install-recommends libgssapi-krb5-2 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* ;; esac
# A fixed number, so that a volume written by one version is readable by the next.
RUN groupadd --gid 10001 ottla \
    && useradd --uid 10001 --gid ottla --no-create-home --shell /usr/sbin/nologin ottla \
    && install -d -o ottla -g ottla /var/lib/ottla
COPY --from=build /opt/ottla /opt/ottla
# A settings file and all variables override OTTLA_IMAGE_...; a file does not override
# KAFKA_LOG_DIRS, so that the data stay in the volume.
ENV PATH=/opt/ottla/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OTTLA_IMAGE_LISTENERS=PLAINTEXT://[::]:9092 \
    KAFKA_LOG_DIRS=/var/lib/ottla
USER ottla
VOLUME /var/lib/ottla
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=5m --retries=3 \
    CMD ["ottla", "healthcheck"]
ENTRYPOINT ["ottla"]
CMD ["start"]
