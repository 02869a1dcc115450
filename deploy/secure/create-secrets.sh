#!/bin/sh
# Creates what docker-compose.secure.yml needs, in deploy/secure/secrets or the directory given: an
# authority, the broker's certificate and key for "localhost" and the names given, and the password of
# the administrator. Existing files are kept.
#
#   deploy/secure/create-secrets.sh [DIRECTORY [NAME...]]
set -eu
directory=${1:-$(dirname "$0")/secrets}
[ $# -gt 0 ] && shift
mkdir -p "$directory"
# The directory keeps other users of this machine out. The files are readable, because the user of the
# container (10001) is none of this machine and gets them by a bind mount.
chmod 0700 "$directory"
cd "$directory"
umask 0077

if [ ! -e ca.pem ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
        -subj "/CN=ottla authority" -keyout ca.key -out ca.pem 2>/dev/null
fi
if [ ! -e server.pem ]; then
    names="DNS:localhost,IP:127.0.0.1"
    for name in "$@"; do names="$names,DNS:$name"; done
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=ottla" \
        -keyout server.key -out server.csr 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$names" > server.ext
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 \
        -extfile server.ext -out server.crt 2>/dev/null
    cat server.key server.crt > server.pem
    rm server.key server.crt server.csr server.ext
fi
# Without a line end: a config provider takes the file as it is.
[ -e admin-password ] || printf %s "$(openssl rand -hex 24)" > admin-password
# What a client of this machine needs; `ottla --command-config` and librdkafka read it as it is.
cat > admin.properties <<END
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=admin
sasl.password=$(cat admin-password)
ssl.ca.location=$(pwd)/ca.pem
END
chmod 0644 ca.pem server.pem admin-password
echo "created in $(pwd); ca.key signs certificates: keep it away from the broker"
