//! The symbolizer process: `heapbpf symbolizer`, started only by the agent.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::engine::{Engine, ModuleFile, Reach};
use super::protocol::{
    ADDRESSES_MAX, CPU_TIME_MAX, MEMORY_BYTES_MAX, Names, PROCESS_NAME, REQUEST_BYTES_MAX, Reply, Request, Role,
    decode, encode,
};
use crate::linux::channel::{Channel, Message};
use crate::linux::companion;
use crate::linux::confinement::{Limits, Root, close_inherited, confine};

/// Address space for mapped files: several of the largest debug files.
const ADDRESS_SPACE_BYTES_MAX: u64 = 64 << 30;
/// Stack size: names and types nest.
const STACK_BYTES: u64 = 16 << 20;

/// Confines this process and answers requests until the agent closes the channel. Must be called on the main thread,
/// before others are started. Fails if standard input is not a channel, or a request is malformed.
pub fn serve() -> io::Result<()> {
    close_inherited();
    let channel = Channel::of_standard_input()?;
    companion::set_name(PROCESS_NAME);
    let confinement = confine(&Limits {
        memory_bytes: MEMORY_BYTES_MAX,
        address_space_bytes: ADDRESS_SPACE_BYTES_MAX,
        stack_bytes: STACK_BYTES,
        cpu_time: CPU_TIME_MAX,
    });
    channel.send(&encode(&Reply::Ready(confinement)), &[])?;
    let mut engine = None;
    while let Some(message) = channel.receive(REQUEST_BYTES_MAX)? {
        let reply = answer(message, confinement.root, &mut engine).ok_or(io::ErrorKind::InvalidData)?;
        channel.send(&encode(&reply), &[])?;
    }
    Ok(())
}

/// The process's private root directory.
const SHARED_DIRECTORY: &str = "/";

/// Creates the links by which shared files are found. Returns whether there are any.
fn share(roles: &[Role], files: &[File], path: impl Fn(&File) -> PathBuf) -> bool {
    let mut any = false;
    for (role, file) in roles.iter().zip(files) {
        let Role::Shared { build_id } = role else { continue };
        let Some((first, rest)) = build_id.split_at_checked(2) else { continue };
        let directory = Path::new(SHARED_DIRECTORY).join(".build-id").join(first);
        let name = directory.join(format!("{rest}.debug"));
        // The name may be that of a previous module, whose descriptors are closed.
        let _ = fs::create_dir_all(&directory);
        let _ = fs::remove_file(&name);
        any |= symlink(path(file), name).is_ok();
    }
    any
}

/// Returns `None` for a malformed request.
fn answer(message: Message, root: Root, engine: &mut Option<(Engine, Vec<File>)>) -> Option<Reply> {
    match decode(&message.bytes)? {
        Request::Open { roles, depth } if roles.len() == message.descriptors.len() => {
            // Closes the files of the previous module.
            *engine = None;
            let files: Vec<File> = message.descriptors.into_iter().map(File::from).collect();
            let path = |file: &File| Path::new(root.descriptors()).join(file.as_raw_fd().to_string());
            let may_open = |file: &File| File::open(path(file)).is_ok();
            let refused: Vec<usize> = (0..files.len()).filter(|&index| !may_open(&files[index])).collect();
            let shared = (root == Root::Private && share(&roles, &files, path)).then_some(Path::new(SHARED_DIRECTORY));
            let usable = roles.iter().zip(&files).enumerate().filter(|(index, _)| !refused.contains(index));
            let input = |(_, (role, file)): (usize, (&Role, &File))| {
                Some(ModuleFile { role: role.clone(), path: path(file), file: file.try_clone().ok()? })
            };
            let inputs = usable.filter_map(input).collect();
            *engine = Some((Engine::open(inputs, depth, Reach { is_confined: root != Root::Shared, shared }), files));
            Some(Reply::Opened { refused })
        }
        Request::Name { addresses } if (1..=ADDRESSES_MAX).contains(&addresses.len()) => {
            let names = engine.as_mut().map_or_else(Names::default, |(engine, _)| engine.name(&addresses));
            Some(Reply::Names(names))
        }
        _ => None,
    }
}
