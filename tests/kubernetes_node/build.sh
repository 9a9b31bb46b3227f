#!/bin/bash
# Compiles Kubernetes 1.20.2 from Debian 12's source package into FOLDER/bin: about five minutes on two cores.
# Usage: build.sh FOLDER, where golang-1.19 and reflect2 of Debian 12 are unpacked in FOLDER/debian.
set -eu
folder=$1
build=$folder/build
mkdir -p "$build"/{lists/partial,archives/partial,go/src/k8s.io,tmp} "$folder/bin"
cd "$build"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1)
echo "deb-src $mirror bookworm main" >sources.list
options=(-o "Dir::Etc::sourcelist=$build/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$build/lists" -o "Dir::Cache=$build")
apt-get "${options[@]}" update -qq
apt-get "${options[@]}" source --download-only -qq kubernetes
tar -xzf kubernetes_1.20*.orig.tar.gz -C go/src/k8s.io
mv go/src/k8s.io/kubernetes-1.20.2 go/src/k8s.io/kubernetes
export GOROOT=$folder/debian/usr/lib/go-1.19 GOPATH=$build/go GO111MODULE=off CGO_ENABLED=0 GOCACHE=$build/cache GOTMPDIR=$build/tmp
export PATH=$GOROOT/bin:$PATH
cd go/src/k8s.io/kubernetes
# reflect2 1.0.1 crashes with Go 1.18 and later.
rm -rf vendor/github.com/modern-go/reflect2
cp -r "$folder/debian/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
# The source package lacks one generated file.
go build -o "$build/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$({
  grep -rl --include='*.go' '^// *+k8s:openapi-gen=' pkg cmd plugin
  cd staging/src && grep -rl --include='*.go' '+k8s:openapi-gen=' k8s.io | sed 's#^#vendor/#'
} | grep -v -e code-generator -e sample-apiserver -e _examples -e testdata -e /zz_generated | xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#')
"$build/openapi-gen" -i "$(echo "$packages" | paste -sd,)" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$build/violations" -o "$GOPATH/src"
flags="-s -w"
for package in component-base/version client-go/pkg/version; do
  version=k8s.io/kubernetes/vendor/k8s.io/$package
  flags="$flags -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20 -X $version.gitTreeState=clean"
done
for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet; do
  go build -tags 'providerless dockerless' -ldflags "$flags" -o "$folder/bin/$program" "./cmd/$program"
done
gcc -Os -static -DVERSION=3.2 -o "$folder/bin/pause" build/pause/linux/pause.c
rm -rf "$build"
