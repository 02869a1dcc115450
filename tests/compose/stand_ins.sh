#!/bin/sh
# Base images for `make test-compose` where Docker Hub is out of reach: Debian with its own Python
# stands for the slim Python image, Debian with its own ZooKeeper for ZooKeeper's. As root, with
# debootstrap. They trust the certificate authorities that this machine trusts.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
python_image=$(sed -n 's/^ARG BASE=//p' "$root/Dockerfile")
zookeeper_image=$(sed -n 's/^    image: \(zookeeper:.*\)$/\1/p' "$root/docker-compose.yml")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

slim() { # what the official slim images leave out too
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/usr/share/doc "$1"/usr/share/man \
        "$1"/usr/share/locale "$1"/var/log/*
    cp /etc/ssl/certs/ca-certificates.crt "$1"/etc/ssl/certs/ca-certificates.crt
}

debootstrap --variant=minbase --include=python3-minimal,python3-venv,ca-certificates \
    "$suite" "$work/python" "$mirror"
slim "$work/python"
tar -C "$work/python" -c . | docker import \
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
    --change 'CMD ["python3"]' - "$python_image"

debootstrap --variant=minbase --include=default-jre-headless,zookeeper,ca-certificates \
    "$suite" "$work/zookeeper" "$mirror"
slim "$work/zookeeper"
cat > "$work/zookeeper/usr/local/bin/zkServer.sh" <<'END'
#!/bin/sh
# `zkServer.sh status` of ZooKeeper's image: whether the server responds.
exec java -cp '/usr/share/java/*' org.apache.zookeeper.client.FourLetterWordMain localhost 2181 srvr
END
cat > "$work/zookeeper/usr/local/bin/entrypoint.sh" <<'END'
#!/bin/sh
cat > /conf/zoo.cfg <<CFG
dataDir=/data
dataLogDir=/datalog
clientPort=2181
tickTime=2000
4lw.commands.whitelist=$ZOO_4LW_COMMANDS_WHITELIST
admin.enableServer=false
CFG
exec java -cp '/usr/share/java/*' org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
END
chmod +x "$work"/zookeeper/usr/local/bin/*.sh
mkdir -p "$work/zookeeper/conf" "$work/zookeeper/data" "$work/zookeeper/datalog"
chown 1000:1000 "$work/zookeeper/conf" "$work/zookeeper/data" "$work/zookeeper/datalog"
tar -C "$work/zookeeper" -c . | docker import \
    --change 'USER 1000' --change 'ENTRYPOINT ["entrypoint.sh"]' - "$zookeeper_image"
