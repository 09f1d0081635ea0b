//! Definitions of protocol buffers, one line per field.

/// Defines prost messages. The brackets contain the arguments of `#[prost]`.
macro_rules! messages {
    ($(
        $(#[$attribute:meta])*
        $message:ident {
            $($(#[$field_attribute:meta])* $field:ident: $type:ty = [$($prost:tt)*],)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, PartialEq, ::prost::Message)]
        pub(super) struct $message {
            $($(#[$field_attribute])* #[prost($($prost)*)] pub(super) $field: $type,)*
        }
    )*};
}

pub(super) use messages;
