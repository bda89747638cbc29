# An image with only the binary and its profiles, running as a user other than root.
#
#   docker build -t wornpath .
#   docker run --rm -p 8080:8080 -v ./router:/etc/wornpath:ro wornpath
#
# `router` is a folder with wornpath.yaml and the tokenizers that it names.
#
# The build downloads crates; the container connects only to the engines.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY crates ./crates
COPY examples/plugin ./examples/plugin
COPY fuzz ./fuzz
COPY profiles ./profiles
# Shown by `wornpath_build_info`: docker build --build-arg REVISION=$(git rev-parse HEAD) …
ARG REVISION=""
ENV WORNPATH_REVISION=$REVISION
RUN cargo install --profile dist --locked --path crates/cli --features redis,kafka,kubernetes,postgres --root /installed

FROM debian:bookworm-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin wornpath
# For `ca: system`, and commands that call https:// addresses.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /installed/bin/wornpath /usr/local/bin/wornpath
COPY profiles /usr/share/wornpath/profiles
USER 10001:10001
EXPOSE 8080
# SIGTERM drains; give `docker stop` a longer timeout than `drain.lame_duck` plus `drain.grace`.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/wornpath"]
CMD ["serve", "--config", "/etc/wornpath/wornpath.yaml"]
