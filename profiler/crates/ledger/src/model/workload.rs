//! Container, Kubernetes pod and systemd unit of a process, from the path of its control group, and pods from the names
//! of the kubelet's log directories. Privileged targets can create groups with any name, so ids are checked strictly.

/// Digits of a container ID, of every engine.
const ID_DIGITS: usize = 64;
/// Prefixes that container engines add to an ID in a group's name. A container's monitor (`libpod-conmon-`) is not in
/// the container.
const ENGINES: [&str; 6] = ["cri-containerd-", "docker-", "crio-", "libpod-", "containerd-", "nerdctl-"];
/// Digits and dashes of a UUID.
const UUID_CHARS: usize = 36;
/// Digits of the UID of a static pod, which is a hash of its manifest.
const STATIC_UID_DIGITS: usize = 32;
/// Maximum length of a Kubernetes namespace, a DNS label, and of a pod's name, a DNS subdomain.
const NAMESPACE_CHARS_MAX: usize = 63;
const POD_CHARS_MAX: usize = 253;

/// What the path of a control group identifies. Of nested containers, the innermost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload<'a> {
    /// 64 hexadecimal digits in lower case.
    pub container_id: Option<&'a str>,
    /// UUID, or 32 hexadecimal digits for a static pod.
    pub pod_uid: Option<String>,
    /// Name of the systemd service, without `.service`, as systemd escapes it. With a container, a service within it.
    pub unit: Option<&'a str>,
}

impl<'a> Workload<'a> {
    pub fn of_cgroup(path: &'a str) -> Self {
        let mut workload = Self::default();
        for name in path.split('/') {
            if let Some(uid) = pod_uid(name) {
                workload = Self { pod_uid: Some(uid), ..Self::default() };
            }
            if let Some(id) = container_id(name) {
                // The engine's own service is no service of the container.
                workload = Self { container_id: Some(id), unit: None, ..workload };
            } else if let Some(unit) = name.strip_suffix(".service").filter(|unit| is_unit(unit)) {
                workload.unit = Some(unit);
            }
        }
        workload
    }
}

/// `user@1000` is the service manager of a user, whose services are below it.
fn is_unit(unit: &str) -> bool {
    !unit.is_empty() && !unit.starts_with("user@") && !unit.contains(|c: char| c.is_control())
}

/// With systemd, containerd may name a group `kubepods-….slice:cri-containerd:ID`.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let name = name.rsplit(':').next().unwrap_or(name);
    let id = ENGINES.iter().find_map(|engine| name.strip_prefix(engine)).unwrap_or(name);
    (id.len() == ID_DIGITS && id.bytes().all(is_digit)).then_some(id)
}

/// `podUID`, or with systemd `kubepods-besteffort-podUID.slice`, in which underscores replace dashes.
fn pod_uid(name: &str) -> Option<String> {
    let name = name.split(':').next().unwrap_or(name);
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod").filter(|(parent, _)| parent.contains("kubepods"))?.1,
        None => name.strip_prefix("pod")?,
    };
    checked_uid(&uid.replace('_', "-")).map(str::to_owned)
}

fn checked_uid(uid: &str) -> Option<&str> {
    let is_uuid = || {
        let mut parts = uid.split('-');
        uid.len() == UUID_CHARS
            && [8, 4, 4, 4, 12].iter().all(|&length| parts.next().is_some_and(|p| p.len() == length))
    };
    let is_static = uid.len() == STATIC_UID_DIGITS && !uid.contains('-');
    let has_digits = uid.bytes().all(|byte| is_digit(byte) || byte == b'-');
    (has_digits && (is_static || is_uuid())).then_some(uid)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// A Kubernetes pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl<'a> Pod<'a> {
    /// Parses the name of a pod's directory in `/var/log/pods`: `NAMESPACE_NAME_UID`, where neither contains `_`
    /// (`BuildPodLogsDirectory` in Kubernetes' pkg/kubelet/kuberuntime/helpers.go).
    pub fn of_directory(directory: &'a str) -> Option<Self> {
        let mut parts = directory.split('_');
        let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
        let is_valid =
            parts.next().is_none() && is_dns_name(namespace, NAMESPACE_CHARS_MAX) && is_dns_name(name, POD_CHARS_MAX);
        checked_uid(uid).filter(|_| is_valid).map(|uid| Self { namespace, name, uid })
    }
}

fn is_dns_name(name: &str, chars_max: usize) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=chars_max).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1ab2c9d05e7788990011223344556677889900aabbccddeeff001122334455";
    const OUTER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
    const UID: &str = "6f2e5a1c-0b1d-4c9e-9f00-1234567890ab";
    const ESCAPED: &str = "6f2e5a1c_0b1d_4c9e_9f00_1234567890ab";
    const STATIC: &str = "d4e5a2d8ec5f95ae32fd5ea8cf1d4a5f";

    fn check(path: &str, container_id: Option<&str>, pod_uid: Option<&str>, unit: Option<&str>) {
        let expected = Workload { container_id, pod_uid: pod_uid.map(str::to_owned), unit };
        assert_eq!(Workload::of_cgroup(path), expected, "{path}");
    }

    #[test]
    fn containers_of_every_engine_are_identified() {
        for path in [
            // Docker: version 1 with cgroupfs, version 2 with systemd, and below the container's own manager.
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/docker-{ID}.scope/init.scope"),
            // Podman with systemd, with cgroupfs, and rootless.
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
            format!("/system.slice/nerdctl-{ID}.scope"),
            format!("/ecs/cluster/0123456789abcdef0123456789abcdef/{ID}"),
            // From within a control group namespace.
            format!("/../../system.slice/docker-{ID}.scope"),
        ] {
            check(&path, Some(ID), None, None);
        }
        check(&format!("/system.slice/docker-{OUTER}.scope/docker/{ID}"), Some(ID), None, None);
    }

    #[test]
    fn pods_are_identified() {
        for (path, uid) in [
            // cgroupfs: burstable, and guaranteed.
            (format!("/kubepods/burstable/pod{UID}/{ID}"), UID),
            (format!("/kubepods/pod{UID}/{ID}"), UID),
            (format!("/kubepods/besteffort/pod{STATIC}/{ID}"), STATIC),
            // systemd: containerd, CRI-O with a group of its own below, cri-dockerd.
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"
                ),
                UID,
            ),
            (format!("/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope/container"), UID),
            (
                format!(
                    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{STATIC}.slice/docker-{ID}.scope"
                ),
                STATIC,
            ),
            // containerd with a systemd path, but cgroupfs.
            (
                format!("/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{ID}"),
                UID,
            ),
            // kind: a node in a container.
            (
                format!(
                    "/system.slice/docker-{OUTER}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"
                ),
                UID,
            ),
        ] {
            check(&path, Some(ID), Some(uid), None);
        }
        check(&format!("/kubepods/pod{UID}"), None, Some(UID), None);
    }

    #[test]
    fn systemd_units_are_identified() {
        check("/system.slice/redis-server.service", None, None, Some("redis-server"));
        check(
            "/system.slice/system-postgresql.slice/postgresql@15-main.service",
            None,
            None,
            Some("postgresql@15-main"),
        );
        check(
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-x\\x2dy.service",
            None,
            None,
            Some("app-x\\x2dy"),
        );
        check("/system.slice/containerd.service", None, None, Some("containerd"));
        // A container in which systemd runs.
        check(&format!("/machine.slice/libpod-{ID}.scope/system.slice/nginx.service"), Some(ID), None, Some("nginx"));
        check("/user.slice/user-1000.slice/user@1000.service", None, None, None);
        check("/user.slice/user-1000.slice/session-3.scope", None, None, None);
    }

    #[test]
    fn names_that_only_resemble_ids_are_not() {
        for path in [
            "",
            "/",
            "/docker",
            "/.service",
            &format!("/machine.slice/libpod-conmon-{ID}.scope"),
            &format!("/docker/{}", &ID[1..]),
            &format!("/docker/{ID}0"),
            &format!("/docker/{}", ID.to_uppercase()),
            &format!("/system.slice/app-pod{ESCAPED}.slice"),
            "/kubepods/podxyz",
            &format!("/kubepods/pod{}", "-".repeat(UUID_CHARS)),
            &format!("/kubepods/pod{}", "a".repeat(UUID_CHARS)),
        ] {
            check(path, None, None, None);
        }
    }

    #[test]
    fn pods_are_parsed_from_the_names_of_log_directories() {
        let parsed =
            |text: &str| Pod::of_directory(text).map(|pod| format!("{}/{} {}", pod.namespace, pod.name, pod.uid));
        assert_eq!(parsed(&format!("shop_cart-7d9.x_{UID}")), Some(format!("shop/cart-7d9.x {UID}")));
        assert_eq!(parsed(&format!("kube-system_etcd-node_{STATIC}")), Some(format!("kube-system/etcd-node {STATIC}")));
        let long = "n".repeat(64);
        for wrong in [
            "",
            "shop_cart",
            &format!("_cart_{UID}"),
            &format!("shop__{UID}"),
            &format!("shop_cart_x_{UID}"),
            &format!("Shop_cart_{UID}"),
            &format!("shop_ca rt_{UID}"),
            &format!("{long}_cart_{UID}"),
            "shop_cart_uid",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in "[-_./:a-f0-9]{0,120}|.*") {
            let workload = Workload::of_cgroup(&text);
            prop_assert!(workload.container_id.is_none_or(|id| id.len() == ID_DIGITS && text.contains(id)));
            let _ = Pod::of_directory(&text);
        }
    }
}
