# An image with nothing in it but the binary, its profiles and a user who is not root.
#
#   docker build -t wornpath .
#   docker run --rm -p 8080:8080 -v ./router:/etc/wornpath:ro wornpath
#
# `router` is a folder with wornpath.yaml and the tokenizers that it names.
#
# Building needs the network for crates; running needs none but the engines'.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY crates ./crates
COPY profiles ./profiles
RUN cargo install --locked --path crates/cli --features nats,redis,kafka,grpc,postgres --root /installed

FROM debian:bookworm-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin wornpath
COPY --from=build /installed/bin/wornpath /usr/local/bin/wornpath
COPY profiles /usr/share/wornpath/profiles
USER 10001:10001
EXPOSE 8080
# SIGTERM drains; give `docker stop` longer than `drain.lame_duck` and `drain.grace` together.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/wornpath"]
CMD ["serve", "--config", "/etc/wornpath/wornpath.yaml"]
