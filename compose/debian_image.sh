#!/bin/bash
# debian_image.sh OUT.tar
#
# Writes a root file system with the distribution's own Python and NumPy, for `docker import`.  It needs no registry, no
# root, no chroot and no debootstrap: apt resolves and downloads packages into a temporary directory, and their files are
# unpacked, not installed, so no maintainer script runs.  What those scripts would have done is done below, where it matters.
#
# Everything that the archive holds is fixed by the packages alone (order, owners, times), so that equal packages give
# equal layers.
set -euo pipefail

out=$(realpath "$1")
# libstdc++ is for wheels: PyTorch, for one, brings none of its own.
packages=(python3 python3-numpy libstdc++6 busybox-static)
# apt is told that these are installed: nothing here needs them, and together they would be a third of the image.
# (readline, dbm and NIS support of the standard library; dpkg and pkg-resources, which only installing needs.)
provided=(dpkg debconf python3-pkg-resources readline-common libdb5.3 libdb5.3t64 libnsl2 libtirpc3
    libtirpc3t64)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
arch=$(dpkg --print-architecture)
say() { echo "$*" >&2; }

# ---- download -----------------------------------------------------------------------------------------------------------
mkdir -p "$work"/cache/archives/partial "$work"/lists/partial
for name in "${provided[@]}"; do
    printf 'Package: %s\nStatus: install ok installed\nArchitecture: %s\nMulti-Arch: foreign\nVersion: 9999:1\n' "$name" "$arch"
    printf 'Maintainer: none\nDescription: provided\n\n'
done >"$work/status"

apt() {  # with its state in $work: nothing of the machine's own is changed, locked or even writable for us
    apt-get -qq -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" \
        -o Debug::NoLocking=1 -o Dpkg::Use-Pty=0 -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "$@" </dev/null >&2
}
download() { apt install --yes --no-install-recommends --download-only "$@" "${packages[@]}"; }
fresh=(-o Dir::State::lists="$work/lists")

say "downloading ${packages[*]} and what they need"
# The machine's package lists may be missing, or name versions that are gone: then fetch lists of our own.
download 2>"$work/why" || { say "fetching package lists"; apt update "${fresh[@]}" && download "${fresh[@]}"; } || {
    cat "$work/why" >&2
    exit 1
}

# ---- unpack -------------------------------------------------------------------------------------------------------------
say "unpacking $(find "$work/cache/archives" -name '*.deb' | wc -l) packages"
mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{tmp,proc,sys,dev,run,root,etc,home,var}
for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$root/$dir"; done
chmod 1777 "$root/tmp"
for deb in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink --no-same-owner \
        --exclude='./usr/share/*' --exclude='./var/*' --exclude='*/gconv' --exclude='*.a' --exclude='*.o' --exclude='*.pyi' \
        --exclude='*/numpy/*/tests' --exclude='*/numpy/tests' --exclude='*/numpy/*/include' --exclude='*/numpy/*/src' \
        --exclude='*/numpy/f2py' --exclude='*/numpy/distutils' --exclude='*/numpy/doc' \
        --exclude='*/numpy/core/_simd.*' --exclude='*/python3.*/dist-packages' --exclude='*/python3.*/test' \
        --exclude='*/lib2to3' --exclude='*/pydoc_data' --exclude='*/ensurepip' --exclude='*/config-3*'
done

# ---- finish -------------------------------------------------------------------------------------------------------------
# Links that update-alternatives would make: BLAS and LAPACK live in directories of their own.
for library in "$root"/usr/lib/*/{blas,lapack}/*.so.*; do
    ln -sf "$(basename "$(dirname "$library")")/$(basename "$library")" "$(dirname "$(dirname "$library")")/"
done
for applet in $("$root/usr/bin/busybox" --list); do
    [ -e "$root/usr/bin/$applet" ] || ln -s busybox "$root/usr/bin/$applet"
done
[ -e "$root/usr/bin/python" ] || ln -s python3 "$root/usr/bin/python"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"

# Byte code, since containers run as any user on a read-only file system and could never keep their own.  The unpacked
# interpreter makes it, through the unpacked loader, so versions match and no chroot is needed.  Checked against nothing at
# import: the sources never change.
loader=$(find "$root"/usr/lib64/ "$root"/usr/lib/ -name 'ld-linux*.so.*' | head -n 1)
libraries=$(find "$root/usr/lib" -maxdepth 1 -type d -name '*-linux-*' | head -n 1)
python() {  # which must not write byte code by itself: that would be checked by time, and hold the path of $root
    env -i PYTHONHOME="$root/usr" PYTHONHASHSEED=0 "$loader" --library-path "$libraries" "$root/usr/bin/python3" -B -s "$@"
}
say "compiling"
python -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" -p / "$root/usr/lib/" >&2
# The proof that nothing needed was left out.
python -c 'import ctypes, hashlib, json, multiprocessing, numpy, socket, sqlite3, ssl, zlib; numpy.linalg.inv(numpy.eye(3))'

tar -C "$root" --owner=0 --group=0 --numeric-owner --sort=name --mtime=@0 -cf "$out.$$" .
mv "$out.$$" "$out"
say "$(du -m "$out" | cut -f1) MB"
