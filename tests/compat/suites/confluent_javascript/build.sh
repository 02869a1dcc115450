#!/bin/sh
# build.sh FOLDER BUILD: installs @confluentinc/kafka-javascript and compiles its addon, once.
# Its own install step downloads the compiled addon, or else the sources of OpenSSL and zlib.
set -e
folder=$1
cd "$2"
cp "$folder/program.mjs" .
[ -e built ] && exit 0
cp "$folder/package.json" .
npm install --no-package-lock --no-audit --no-fund --ignore-scripts
if ! [ -e zstd/usr/include/zstd.h ]; then # librdkafka needs the headers of zstd
  apt-get download libzstd-dev
  dpkg -x libzstd-dev_*.deb zstd
fi
export CPATH="$PWD/zstd/usr/include" LIBRARY_PATH="$PWD/zstd/usr/lib/x86_64-linux-gnu"
export CKJS_LINKING=dynamic # with the OpenSSL and zlib of the machine
export npm_config_nodedir=/usr # the headers of Node.js
gyp="$(npm root -g)/npm/node_modules/node-gyp/bin/node-gyp.js"
build=$PWD
cd node_modules/@confluentinc/kafka-javascript
touch deps/librdkafka/config.h # or make knows no rule for it
node "$gyp" configure
node "$gyp" build
cd "$build"
touch built
