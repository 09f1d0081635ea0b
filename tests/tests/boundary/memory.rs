//! What programs of others can make heapbpf allocate.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::target::Target;

#[test]
fn memory_with_the_name_of_stubs_is_not_read() {
    for engine in ["trap", "inline"] {
        let mut target = Target::start("misnamed.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --engine {engine} -o x.json"));
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        let bytes = heapbpf.report("x.json").health.agent_rss_bytes_max;
        assert!(bytes < 1 << 30, "{engine}: {bytes} bytes, because of sparse 2 GiB");
    }
}
