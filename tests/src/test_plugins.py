#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kernels from shared objects: libattn's own plug-ins, a user's, and those that must be refused with a sentence.

tests/src/test_plugins.py CLIENT LIBATTN FOLDER ATTNBENCH C_COMPILER [unittest options]

CLIENT is tests/src/plugins/client.c, which links LIBATTN; FOLDER holds the plug-ins of tests/src/plugins/refused.c."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLIENT, LIBATTN, FOLDER, ATTNBENCH = (Path(sys.argv.pop(1)).resolve() for _ in range(4))
COMPILER = sys.argv.pop(1)
SOURCE = Path(__file__).resolve().parents[2]


def environment(**more):
    return {key: value for key, value in os.environ.items() if not key.startswith("ATTN_")} | more


def client(*arguments, **more):
    """The client's output."""
    done = subprocess.run([CLIENT, *map(str, arguments)], capture_output=True, text=True, env=environment(**more),
                          timeout=100)
    assert done.returncode == 0, done
    return done.stdout


def attnbench(*arguments, cwd=None):
    return subprocess.run([ATTNBENCH, *map(str, arguments)], capture_output=True, text=True, env=environment(), cwd=cwd,
                          timeout=300)


def dynamic_section():
    return subprocess.run(["readelf", "-d", LIBATTN], capture_output=True, text=True, check=True).stdout


def own_plugin(name):
    return LIBATTN.parent / f"libattn_{name}.so"


class Own(unittest.TestCase):
    """openblas and onednn."""

    def need(self, name):
        if not own_plugin(name).exists():
            self.skipTest(f"no plug-in {name} in this build")

    def test_the_library_needs_the_c_library_and_openmp_alone(self):
        libraries = re.findall(r"NEEDED.*\[(.*)\]", dynamic_section())
        self.assertTrue(libraries)
        for library in libraries:
            self.assertRegex(library, r"^(libm|libc|libgomp|libomp|libdl|libpthread|ld-linux.*|lib[at]san|libubsan)\.so")

    def test_a_program_has_one_thread_until_it_asks_for_more(self):
        self.assertEqual(client("threads", "run", "naive_c", "threads").split(), ["1", "naive_c", "1"])

    def test_a_name_loads_what_lies_beside_the_library(self):
        for name, kernel in (("openblas", "gemm_openblas"), ("onednn", "matmul_onednn")):
            with self.subTest(name):
                self.need(name)
                before = client("kernels")
                self.assertNotIn(kernel, before)
                after = client("load", name, "kernels")
                self.assertRegex(after, rf"^ATTN_OK\n{before}(.*\n)*{kernel} {own_plugin(name)}\n")
                self.assertEqual(client("load", name, "run", kernel), f"ATTN_OK\n{kernel}\n")

    def test_products_come_with_the_plug_in(self):
        self.need("openblas")
        self.assertIn("unless its plug-in is loaded", client("product", "product_openblas"))
        self.assertEqual(client("load", "openblas", "product", "product_openblas"), "ATTN_OK\nproduct_openblas\n")

    def test_an_unloaded_kernel_says_where_it_is(self):
        self.need("openblas")
        self.assertRegex(client("missing"), r"gemm_openblas it is in the plug-in 'openblas'.*ATTN_LOAD=openblas")
        self.assertRegex(client("run", "gemm_openblas"), r"^ATTN_UNKNOWN_KERNEL: .*'gemm_openblas'.*plug-in 'openblas'")
        self.assertNotIn("gemm_openblas", client("load", "openblas", "missing"))

    def test_the_environment_loads_too(self):
        self.need("openblas")
        path = FOLDER / "plugin_nothing.so"
        kernels = client("kernels", ATTN_LOAD=f"openblas::{path}:")
        self.assertRegex(kernels, f"(?s)gemm_openblas .*test_first {path}\ntest_second {path}\n$")
        self.assertNotIn("gemm_openblas", client("missing", ATTN_LOAD="openblas"))
        self.assertEqual(client("run", "gemm_openblas", ATTN_LOAD="openblas"), "gemm_openblas\n")
        self.assertEqual(client("run", "auto", ATTN_KERNEL="gemm_openblas", ATTN_LOAD="openblas"), "gemm_openblas\n")
        self.assertEqual(client("product", "product_openblas", ATTN_LOAD="openblas"), "product_openblas\n")

    def test_what_the_environment_cannot_load_fails_every_plan(self):
        for asks in (["run", "auto"], ["run", "flash_c"], ["product", "product_c"]):
            self.assertRegex(client(*asks, ATTN_LOAD="flush"),
                             "^ATTN_UNSUPPORTED: ATTN_LOAD has 'flush': there is no plug-in")

    def test_a_plug_in_that_lies_nowhere_is_named_with_all_places(self):
        self.need("openblas")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(LIBATTN, Path(folder) / re.search(r"SONAME.*\[(.*)\]", dynamic_section()).group(1))
            words = client("load", "openblas", "missing", LD_LIBRARY_PATH=folder)
            self.assertRegex(words, rf"^ATTN_UNSUPPORTED: there is no plug-in 'openblas': libattn_openblas.so is not in "
                             rf"{folder}, {folder}/attn-\d+, /.*/attn-\d+, and the loader says: ")
            self.assertRegex(words, "gemm_openblas its plug-in cannot be loaded: there is no plug-in")
            (Path(folder) / "attn-0").mkdir()
            shutil.copy(own_plugin("openblas"), Path(folder) / "attn-0")
            self.assertIn(f"gemm_openblas {folder}/attn-0/libattn_openblas.so",
                          client("load", "openblas", "kernels", LD_LIBRARY_PATH=folder))

    def test_attnbench_shows_both_in_one_table(self):
        for name in ("openblas", "onednn"):
            self.need(name)
        with tempfile.TemporaryDirectory() as folder:
            done = attnbench("run", "-a", "seq=32", "-a", "head_dim=16", "-k", "gemm_openblas,matmul_onednn,naive_c",
                             "--rounds", "6", "-q", "-o", folder)
            self.assertRegex(done.stdout, r"(?s)gemm_openblas.*matmul_onednn|matmul_onednn.*gemm_openblas", done.stderr)
            facts = json.loads((Path(folder) / "env.json").read_text(encoding="utf-8"))
            self.assertRegex(json.dumps(facts), r"libattn_openblas\.so.*libattn_onednn\.so")
            self.assertRegex(json.dumps(facts), r"OpenBLAS \d.*oneDNN \d")


SENTENCES = {  # the fault of plugin_NAME.so
    "entry": "is no plug-in: it does not export attn_plugin_entry",
    "abi": r"is built for version 99 of the kernel interface, and libattn \d+\.\d+\.\d+ has version \d+; build it",
    "size": r"an attn_kernel has \d+ bytes, and in libattn .* \d+; build it",
    "grown": r"an attn_problem has \d+ bytes, and in libattn .* \d+; build it",
    "newer": r"an attn_plugin has \d+ bytes, and in libattn .* \d+; build it",
    "name": "kernel 1 of .* is called 'Test-kernel'; a name has small letters",
    "taken": "has a kernel 'flash_c', and libattn itself has one of that name already",
    "twice": "has a kernel 'test_first', and the same file has one of that name already",
    "tier": "kernel 'test_first' of .* is of tier 'sse2'; it must be one of c, ",
    "member": "kernel 'test_first' of .* lacks run",
    "start": "cannot start: it does not want to",
    "version": "belongs to libattn 0.0.7, and this is libattn",
    "count": "brings no kernel",
}


class Refused(unittest.TestCase):
    def test_each_by_a_sentence_and_none_of_its_kernels_stays(self):
        for name, sentence in SENTENCES.items():
            with self.subTest(name):
                path = FOLDER / f"plugin_{name}.so"
                words = client("load", path, "load", path, "kernels")
                self.assertRegex(words, f"^(ATTN_UNSUPPORTED: .*{sentence}.*\n){{2}}")
                self.assertIn(path.name, words)
                self.assertNotIn("test_", words.split("\n", 2)[2])

    def test_what_is_no_file_or_no_shared_object(self):
        self.assertRegex(client("load", "./no/such.so"), r"^ATTN_UNSUPPORTED: cannot load \./no/such\.so: .*such")
        self.assertRegex(client("load", __file__), "^ATTN_UNSUPPORTED: cannot load .*test_plugins.py: .*")
        self.assertRegex(client("load", "./" + "x" * 4094), "^ATTN_UNSUPPORTED: cannot load a path of 4096 bytes")
        self.assertRegex(client("load", ""), "^ATTN_INVALID_ARGUMENT: plugin is ''; it must be a name")
        self.assertRegex(client("load", "libmine.so"), "^ATTN_INVALID_ARGUMENT: plugin is 'libmine.so'.*a path with a slash")

    def damaged(self, folder):
        """Files that are no whole shared object of this machine, and the words about each."""
        whole = (FOLDER / "plugin_nothing.so").read_bytes()
        for count in (0, 10, 63, 64, 500, *range(1000, len(whole) * 3 // 4, 1000)):
            yield f"first_{count}.so", whole[:count], "file too short|cannot read file data|truncated"
        yield "text.so", b"no ELF" * 2000, "invalid ELF header"
        yield "class.so", whole[:4] + bytes([3 - whole[4]]) + whole[5:], "wrong ELF class"
        yield "machine.so", whole[:18] + b"\x08\x00" + whole[20:], "cannot open shared object file|wrong|invalid"
        os.mkfifo(folder / "pipe.so")
        yield "pipe.so", None, "no regular file"
        (folder / "folder.so").mkdir()
        yield "folder.so", None, "no regular file"
        (folder / "secret.so").touch(mode=0)
        if os.getuid() != 0:
            yield "secret.so", None, "Permission denied"

    def test_files_that_are_no_whole_shared_object(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for name, content, sentence in self.damaged(folder):
                with self.subTest(name):
                    path = folder / name
                    if content is not None:
                        path.write_bytes(content)
                    words = client("load", path, "kernels")
                    self.assertRegex(words, f"^ATTN_UNSUPPORTED: cannot load {path}: .*({sentence})")
                    self.assertNotIn("test_", words)
                    self.assertRegex(client("run", "auto", ATTN_LOAD=str(path)), rf"ATTN_LOAD has '{path}': .*({sentence})")
            done = attnbench("run", "--load", folder / "first_2000.so")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("it is truncated", done.stderr)

    def test_one_is_refused_through_the_environment_and_by_attnbench_too(self):
        for name, sentence in SENTENCES.items():
            with self.subTest(name):
                path = FOLDER / f"plugin_{name}.so"
                words = client("run", "auto", ATTN_LOAD=str(path))
                self.assertRegex(words, f"^ATTN_UNSUPPORTED: ATTN_LOAD has .*{sentence}")
                done = attnbench("list", "kernels", "--load", path)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, sentence)

    def test_kernels_of_two_plug_ins_cannot_share_a_name(self):
        first, second = FOLDER / "plugin_nothing.so", FOLDER / "copy.so"
        shutil.copy(first, second)
        self.assertRegex(client("load", first, "load", second),
                         f"^ATTN_OK\nATTN_UNSUPPORTED: {second} has a kernel 'test_first', and {first} has one of that name")


class Loaded(unittest.TestCase):
    def test_a_name_may_lie_where_the_loader_looks(self):
        with tempfile.TemporaryDirectory() as folder:
            found = shutil.copy(FOLDER / "plugin_nothing.so", Path(folder) / "libattn_elsewhere.so")
            self.assertIn(f"test_second {found}\n", client("load", "elsewhere", "kernels", LD_LIBRARY_PATH=folder))

    def test_a_symbol_names_one_set_of_a_file(self):
        path = f"{FOLDER}/plugin_entry.so:another_symbol"
        self.assertRegex(client("load", path, "load", path, "kernels"), f"(?s)^(ATTN_OK\n){{2}}.*\ntest_first {path}\n")

    def test_a_file_may_have_a_colon(self):
        path = FOLDER / "copy:of.so"
        shutil.copy(FOLDER / "plugin_nothing.so", path)
        self.assertRegex(client("load", path, "kernels"), f"(?s)^ATTN_OK\n.*\ntest_first {path}\n")

    def test_twice_is_once(self):
        path, link = FOLDER / "plugin_nothing.so", FOLDER / "link.so"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        words = client("load", path, "load", link, "load", path, "kernels")
        self.assertEqual(words.count("ATTN_OK"), 3)
        self.assertEqual(words.count("test_first"), 1)

    def test_threads_may_load_at_once(self):
        self.assertEqual(client("race", FOLDER / "plugin_nothing.so"), "ATTN_OK\n")
        words = client("race", FOLDER / "plugin_nothing.so", "kernels")
        self.assertEqual(words.count("test_first"), 1)


class OwnKernel(unittest.TestCase):
    """examples/own_kernel, built by the command at its head."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = cls.build("ATTN_EXPORT_KERNELS(&own_kernel);")

    @classmethod
    def build(cls, export):
        """The shared object, with the last line replaced."""
        text = (SOURCE / "examples/own_kernel/own_kernel.c").read_text(encoding="utf-8")
        command = re.search(r" cc (.*)\n", text).group(1)
        command = command.replace("$(pkg-config --cflags attn)", f"-I{SOURCE / 'include'}")
        text = re.sub(r"\nATTN_EXPORT.*", "\n" + export, text)
        (Path(cls.folder.name) / "own_kernel.c").write_text(text, encoding="utf-8")
        subprocess.run(f"{COMPILER} {command}", shell=True, cwd=cls.folder.name, check=True)
        return Path(cls.folder.name) / "libown_kernel.so"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_program_runs_it_by_name_and_never_by_chance(self):
        self.assertEqual(client("load", self.file, "run", "own_kernel"), "ATTN_OK\nown_kernel\n")
        costs = {"ATTN_MACHINE": "generic"}  # two processes beside a load may measure two classes
        automatic = client("run", "auto", **costs)
        self.assertEqual(client("load", self.file, "run", "auto", **costs), "ATTN_OK\n" + automatic)

    def test_attnbench_checks_it_like_all_others(self):
        axes = ("seq=5,67", "heads=4", "heads_kv=1,4", "head_dim=20", "layout=bhsd,bshd,strided,transposed")
        shapes = [word for axis in axes for word in ("-a", axis)]
        done = attnbench("check", "--load", "./libown_kernel.so", "-k", "own_kernel", *shapes, cwd=self.folder.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_attnbench_times_it_beside_others(self):
        done = attnbench("run", "--load", self.file, "-k", "own_kernel,naive_c", "-a", "seq=32", "--rounds", "6", "-q")
        self.assertRegex(done.stdout, r"(?s)own_kernel +PASS|own_kernel.*GF/s|own_kernel", done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_name_and_a_file_are_enough(self):
        mine = f"own_kernel={self.file}"
        done = attnbench("run", "-k", mine, "-k", "naive_c", "-a", "seq=32", "--rounds", "6", "-q", "--csv", "-")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^[^,]*,[^,]*,own_kernel,(.*,)PASS,")
        self.assertRegex(done.stdout, r"(?m)^[^,]*,[^,]*,naive_c,(.*,)PASS,")
        for wrong, words in ((f"other={self.file}", "other"), (f"={self.file}", "NAME=FILE[:SYMBOL]"),
                             ("own_kernel=", "NAME=FILE[:SYMBOL]"), ("own_kernel=./nowhere.so", "nowhere.so")):
            done = attnbench("run", "-k", wrong, "-a", "seq=32")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)

    def test_a_symbol_chooses_among_several_sets(self):
        old = "const attn_plugin old = {.abi = 99};"
        copy = self.file.rename(self.file.with_suffix(".kept"))
        several = self.build(f"ATTN_EXPORT_KERNELS_AS(mine, &own_kernel);\n{old}").rename(self.file.with_name("several.so"))
        copy.rename(self.file)
        done = attnbench("check", "-k", f"own_kernel={several}:mine", "-a", "seq=5", "--csv", "-", "-q")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^[^,]*,[^,]*,own_kernel,(.*,)PASS,")
        for symbol, words in (("other", "it does not export other"), ("old", "is built for version 99")):
            done = attnbench("run", "-k", f"own_kernel={several}:{symbol}", "-a", "seq=32")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)

    def test_attnbench_compares_two_versions_of_it(self):
        kept = self.file.rename(self.file.with_suffix(".kept"))
        slow = self.build("static void twice(const attn_schedule *s, const attn_args *a, attn_task t, void *u, void *x) {\n"
                          "  for (int i = 0; i < 20; i++) run(s, a, t, u, x);\n}\nstatic attn_kernel slow;\n"
                          "__attribute__((constructor)) static void make(void) { slow = own_kernel; slow.run = twice; }\n"
                          "ATTN_EXPORT_KERNELS(&slow);").rename(self.file.with_name("slow.so"))
        kept.rename(self.file)
        done = attnbench("compare", "--paired", self.file, slow, "-a", "seq=16", "-q", "--rounds", "11", "--csv", "-")
        if done.returncode == 4:
            self.skipTest(done.stderr)
        ratio = re.search(r"(?m)^\w+,own_kernel,[^,]*,([\d.]+),", done.stdout)
        self.assertLess(float(ratio[1]), 0.5, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("own_kernel"), 1, done.stdout)
        for pair, words in (((self.file, LIBATTN), "two builds or two plug-ins"),
                            ((FOLDER / "plugin_abi.so", self.file), "is built for version 99"),
                            ((self.file, slow, "-k", "naive_c"), "no kernel that passes")):
            done = attnbench("compare", "--paired", *pair)
            self.assertIn(done.returncode, (2, 3))
            self.assertIn(words, done.stderr)

    def test_attnbench_says_where_it_came_from_and_what_it_refuses(self):
        self.assertIn("own_kernel", attnbench("list", "kernels", "--load", self.file).stdout)
        self.assertIn(str(self.file), attnbench("env", "--load", self.file).stdout)
        self.assertRegex(attnbench("explain", "--load", self.file, "-a", "causal=top-left").stdout,
                         r"own_kernel +no: it takes no masks")

    def test_attnbench_says_what_it_cannot_load(self):
        done = attnbench("run", "--load", FOLDER / "plugin_abi.so")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "^attnbench run: plug-in '.*plugin_abi.so': .* is built for version 99")
        self.assertEqual(attnbench("check", "-k", "own_kernel").returncode, 2)


if __name__ == "__main__":
    unittest.main()
