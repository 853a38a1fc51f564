# SPDX-License-Identifier: MIT
# Homebrew formula, for Linux. `url` and `sha256` are those of a release's source archive.
class Attn < Formula
  desc "Attention kernels for CPUs, and the benchmark that validates them"
  homepage "https://github.com/attn/attn"
  url "https://github.com/attn/attn/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "cmake" => :build
  depends_on "hwloc"
  depends_on :linux

  def install
    args = %w[-DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DATTN_GBENCH=OFF -DATTN_OPENBLAS=OFF -DATTN_ONEDNN=OFF]
    system "cmake", "-S", ".", "-B", "build", *args, *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
    pkgshare.install "examples/sdpa.c"
  end

  test do
    system ENV.cc, pkgshare/"sdpa.c", "-I#{include}", "-L#{lib}", "-lattn", "-Wl,-rpath,#{lib}", "-o", "sdpa"
    assert_match "o[511][0] = 4.", shell_output("./sdpa")
    system bin/"attnbench", "check", "--suite", "conformance", "--cases", "3"
  end
end
