//! Requests of Pyroscope (`push/v1/push.proto`) and Parca (`parca/profilestore/v1alpha1/profilestore.proto`), with the fields
//! that heapbpf sets, and replies of OTLP. Encoded requests of several series can be concatenated: the result is the request of
//! the whole list.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// A compressed pprof file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) raw_profile: Vec<u8>,
}

pub(super) mod pyroscope {
    use super::{Label, Message, RawSample};

    #[derive(Clone, PartialEq, Message)]
    pub(in crate::push) struct PushRequest {
        #[prost(message, repeated, tag = "1")]
        pub(in crate::push) series: Vec<RawProfileSeries>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(in crate::push) struct RawProfileSeries {
        #[prost(message, repeated, tag = "1")]
        pub(in crate::push) labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        pub(in crate::push) samples: Vec<RawSample>,
    }
}

pub(super) mod parca {
    use super::{Label, Message, RawSample};

    #[derive(Clone, PartialEq, Message)]
    pub(in crate::push) struct WriteRawRequest {
        #[prost(message, repeated, tag = "2")]
        pub(in crate::push) series: Vec<RawProfileSeries>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(in crate::push) struct RawProfileSeries {
        #[prost(message, optional, tag = "1")]
        pub(in crate::push) labels: Option<LabelSet>,
        #[prost(message, repeated, tag = "2")]
        pub(in crate::push) samples: Vec<RawSample>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(in crate::push) struct LabelSet {
        #[prost(message, repeated, tag = "1")]
        pub(in crate::push) labels: Vec<Label>,
    }
}
