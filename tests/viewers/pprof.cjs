// Decodes a pprof file with npm's pprof-format, and prints what it says with everything resolved: sample types, comments,
// mappings, and per sample its values, labels and functions, the innermost first.
//
//     pprof.cjs FILE

const fs = require("fs");
const zlib = require("zlib");
const { Profile } = require("pprof-format");

const profile = Profile.decode(zlib.gunzipSync(fs.readFileSync(process.argv[2])));
const text = (index) => profile.stringTable.strings[Number(index)];
const byId = (list) => new Map(list.map((item) => [String(item.id), item]));
const functions = byId(profile.function);
const locations = byId(profile.location);
const mappings = byId(profile.mapping);

const resolved = (map, id) => {
    if (!map.has(String(id))) throw new Error(`nothing has the id ${id}`);
    return map.get(String(id));
};

const frames = (id) => {
    const location = resolved(locations, id);
    const mapping = Number(location.mappingId) === 0 ? null : resolved(mappings, location.mappingId);
    if (mapping && Number(mapping.memoryLimit) > 0) {
        const address = BigInt(location.address);
        if (address < BigInt(mapping.memoryStart) || address >= BigInt(mapping.memoryLimit)) {
            throw new Error(`${address} is not in ${text(mapping.filename)}`);
        }
    }
    return location.line.map((line) => {
        const of = resolved(functions, line.functionId);
        return { function: text(of.name), file: text(of.filename), line: Number(line.line), module: mapping && text(mapping.filename) };
    });
};

const labels = (list) =>
    Object.fromEntries(list.map((label) => [text(label.key), Number(label.str) ? text(label.str) : Number(label.num)]));

process.stdout.write(
    JSON.stringify({
        sample_types: profile.sampleType.map((type) => [text(type.type), text(type.unit)]),
        default_sample_type: text(profile.defaultSampleType),
        period: Number(profile.period),
        comments: profile.comment.map(text),
        mappings: profile.mapping.map((mapping) => ({
            file: text(mapping.filename),
            build_id: text(mapping.buildId),
            start: Number(mapping.memoryStart),
            limit: Number(mapping.memoryLimit),
        })),
        samples: profile.sample.map((sample) => ({
            values: sample.value.map(Number),
            labels: labels(sample.label),
            frames: sample.locationId.flatMap(frames),
        })),
    }),
);
