//! The token of `--token-file`.

use std::fs::Permissions;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heapbpf_base::shown::Shown;
use heapbpf_linux::files;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 1024;

/// A shared secret. Only its hash is kept.
#[derive(Clone)]
pub(crate) struct Token {
    digest: [u8; 32],
}

impl Token {
    /// Reads the token. Fails unless the file belongs to a user who may have the token: the file's mode must not let others read
    /// it, or the group write it.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let shown = Shown::of(path);
        let fail = |reason: String| format!("cannot use the token in `{shown}`: {reason}");
        let file = files::open(path).map_err(|error| fail(error.to_string()))?;
        let permissions = file.metadata().map_err(|error| fail(error.to_string()))?.permissions();
        if is_exposed(&permissions) {
            let mode = permissions.mode() & 0o777;
            return Err(fail(format!("other users have access (mode {mode:o}); `chmod 600 {shown}`")));
        }
        let mut text = String::new();
        file.take(BYTES_MAX as u64 + 2).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
        Self::new(text.trim()).map_err(fail)
    }

    fn new(text: &str) -> Result<Self, String> {
        if text.len() < BYTES_MIN {
            return Err(format!("it has fewer than {BYTES_MIN} characters; `openssl rand -hex 32` makes one"));
        }
        if text.len() > BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("it is not one word of at most {BYTES_MAX} ASCII characters"));
        }
        Ok(Self { digest: Sha256::digest(text).into() })
    }

    /// Whether this value of an `Authorization` header has the token: as `Bearer`, or as the password of `Basic`. The comparison
    /// takes a time that does not depend on which bytes are right.
    pub(super) fn authorizes(&self, header: &str) -> bool {
        let Some((scheme, value)) = header.split_once(' ') else { return false };
        let value = value.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.is(value.as_bytes());
        }
        if scheme.eq_ignore_ascii_case("basic")
            && let Ok(pair) = STANDARD.decode(value)
            && let Some(colon) = pair.iter().position(|&byte| byte == b':')
        {
            return self.is(&pair[colon + 1..]);
        }
        false
    }

    fn is(&self, given: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(given).into();
        digest.ct_eq(&self.digest).into()
    }
}

fn is_exposed(permissions: &Permissions) -> bool {
    permissions.mode() & 0o027 != 0
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    pub(in crate::serve) const TEXT: &str = "0123456789abcdef0123";

    pub(in crate::serve) fn token() -> Token {
        Token::new(TEXT).expect("long enough")
    }

    #[test]
    fn both_schemes_authorize() {
        let token = token();
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        for header in [
            format!("Bearer {TEXT}"),
            format!("bearer  {TEXT} "),
            basic(&format!(":{TEXT}")),
            basic(&format!("me:{TEXT}")),
        ] {
            assert!(token.authorizes(&header), "{header}");
        }
        for header in ["", "Bearer", "Bearer ", TEXT, "Bearer 0123456789abcdef012", "Basic %", "Digest x", "Bearer\t"] {
            assert!(!token.authorizes(header), "{header}");
        }
        assert!(!token.authorizes(&basic(TEXT)) && !token.authorizes(&basic(&format!("{TEXT}:"))));
    }

    #[test]
    fn weak_and_malformed_tokens_are_refused() {
        for (text, reason) in [("", "fewer than 16"), ("short", "fewer than 16"), ("two words of a text", "one word")] {
            let error = Token::new(text).err().expect(text);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn files_that_others_can_read_are_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("token");
        fs::write(&path, format!("{TEXT}\n")).expect("ours");
        for (mode, is_fine) in
            [(0o600, true), (0o400, true), (0o440, true), (0o644, false), (0o660, false), (0o604, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            let token = Token::read(&path);
            assert_eq!(token.is_ok(), is_fine, "{mode:o}");
            assert!(token.map_or_else(|error| error.contains("chmod 600"), |token| token.is(TEXT.as_bytes())));
        }
        let error = Token::read(&folder.path().join("missing")).err().expect("it is not there");
        assert!(error.contains("missing`: "), "{error}");
    }
}
