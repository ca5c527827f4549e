"""A client that shares no code with the server: grpcio and the descriptor set only.

Usage: client.py DESCRIPTOR_SET TARGET...

Asserts what it sees from the server of foreign.rs on each target.
"""

import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_status import rpc_status

TYPE_URL = "type.googleapis.com/jaco.v1.Error"
TIMEOUT_S = 20
# For a unix target grpcio would send the escaped path, which our HTTP/2 library refuses as an
# authority; other clients send this by themselves.
OPTIONS = [("grpc.default_authority", "localhost")]


class Contract:
    """Message classes and calls of jaco.v1, made from the descriptor set alone."""

    def __init__(self, path):
        with open(path, "rb") as file:
            files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
        self.pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self.pool.Add(file)

    def message(self, name):
        return message_factory.GetMessageClass(
            self.pool.FindMessageTypeByName(f"jaco.v1.{name}")
        )

    def call(self, channel, service, method):
        found = self.pool.FindServiceByName(f"jaco.v1.{service}").methods_by_name[method]
        open_call = channel.unary_stream if found.server_streaming else channel.unary_unary
        return open_call(
            f"/jaco.v1.{service}/{method}",
            request_serializer=message_factory.GetMessageClass(
                found.input_type
            ).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(
                found.output_type
            ).FromString,
        )


def failure(call, request):
    try:
        answer = call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"answered instead of failing: {answer}")


def check_error(contract, error, grpc_code, code, message, details):
    assert error.code() == grpc_code, error
    assert error.details() == code, error.details()
    trailers = [
        value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"
    ]
    assert len(trailers) == 1, trailers
    # Refuses an envelope whose code or message differs from the trailers.
    envelope = rpc_status.from_call(error)
    assert len(envelope.details) == 1, envelope
    assert envelope.details[0].type_url == TYPE_URL, envelope
    typed = contract.message("Error").FromString(envelope.details[0].value)
    assert typed.code == code, typed
    assert typed.message == message, typed
    assert dict(typed.details) == details, typed
    return envelope, trailers[0]


def error_of_a_call_is_typed(contract, channel):
    request = contract.message("ApplyRequest")(jaco_yaml=b"\x00\xff", dry_run=True)
    error = failure(contract.call(channel, "Deploy", "Apply"), request)
    envelope, trailer = check_error(
        contract,
        error,
        grpc.StatusCode.INVALID_ARGUMENT,
        "reserved_port",
        "port 80 belongs to the ingress",
        {"service": "web", "port": "80", "entry": "80:8080"},
    )
    typed = (
        b"\x0a\x0dreserved_port\x12\x1eport 80 belongs to the ingress"
        b"\x1a\x10\x0a\x05entry\x12\x0780:8080"
        b"\x1a\x0a\x0a\x04port\x12\x0280"
        b"\x1a\x0e\x0a\x07service\x12\x03web"
    )
    assert envelope.details[0].value == typed, envelope.details[0].value
    packed = b"\x0a\x21" + TYPE_URL.encode() + b"\x12" + bytes([len(typed)]) + typed
    expected = b"\x08\x03\x12\x0dreserved_port\x1a" + varint(len(packed)) + packed
    assert trailer == expected, trailer


def error_text_may_be_any_unicode(contract, channel):
    request = contract.message("RollbackRequest")(deployment="façade")
    error = failure(contract.call(channel, "Deploy", "Rollback"), request)
    check_error(
        contract,
        error,
        grpc.StatusCode.NOT_FOUND,
        "deployment_not_found",
        "no deployment façade → 100 %",
        {"deployment": "façade"},
    )


def largest_error_arrives(contract, channel):
    request = contract.message("GetRouteRequest")()
    error = failure(contract.call(channel, "Deploy", "GetRoute"), request)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert error.details() == "validation_failed", error
    envelope = rpc_status.from_call(error)
    typed = contract.message("Error").FromString(envelope.details[0].value)
    assert typed.message.endswith("..."), typed.message
    assert len(typed.details) > 1, typed


def error_ends_a_stream_after_its_messages(contract, channel):
    request = contract.message("LogsRequest")(deployment="shop", follow=True)
    stream = contract.call(channel, "Deploy", "Logs")(request, timeout=TIMEOUT_S)
    lines = []
    try:
        for line in stream:
            lines.append((line.line, line.ts.seconds, line.ts.nanos))
    except grpc.RpcError as error:
        check_error(
            contract,
            error,
            grpc.StatusCode.INTERNAL,
            "logs_stream",
            "stream of b broke",
            {"host": "b"},
        )
    else:
        raise AssertionError("stream ended without an error")
    assert lines == [("one", 1, 5), ("two", 2, 6)], lines


def error_before_the_first_message_is_typed(contract, channel):
    request = contract.message("LogsRequest")()
    stream = contract.call(channel, "Deploy", "Logs")(request, timeout=TIMEOUT_S)
    try:
        next(stream)
    except grpc.RpcError as error:
        check_error(
            contract,
            error,
            grpc.StatusCode.UNAVAILABLE,
            "no_leader",
            "no leader",
            {},
        )
    else:
        raise AssertionError("stream answered")


def metadata_goes_both_ways(contract, channel):
    request = contract.message("DeleteRequest")(deployment="shop")
    _, call = contract.call(channel, "Deploy", "Delete").with_call(
        request,
        timeout=TIMEOUT_S,
        metadata=[("authorization", "Bearer s3cret"), ("x-request-id", "abc")],
    )
    seen = dict(call.initial_metadata())
    assert seen["seen-authorization"] == "Bearer s3cret", seen
    assert seen["x-request-id"] == "abc", seen


def messages_keep_maps_lists_times_and_unknown_values(contract, channel):
    request = contract.message("DeployStatusRequest")()
    answer = contract.call(channel, "Deploy", "Status")(request, timeout=TIMEOUT_S)
    (deployment,) = answer.deployments
    assert deployment.name == "shop", deployment
    assert deployment.highest_revision == 7, deployment
    assert dict(deployment.status_details) == {"a": "1", "b": "2"}, deployment
    assert [service.hosts[:] for service in deployment.services] == [["h1", "h2"]]
    (replica,) = answer.replicas
    assert replica.state == 4321, replica.state
    assert replica.started_at.nanos == 999_999_999, replica
    assert not replica.HasField("last_health_at"), replica


def varint(number):
    assert number < 1 << 14
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


CHECKS = [
    error_of_a_call_is_typed,
    error_text_may_be_any_unicode,
    largest_error_arrives,
    error_ends_a_stream_after_its_messages,
    error_before_the_first_message_is_typed,
    metadata_goes_both_ways,
    messages_keep_maps_lists_times_and_unknown_values,
]


def main(descriptor_set, *targets):
    contract = Contract(descriptor_set)
    for target in targets:
        with grpc.insecure_channel(target, options=OPTIONS) as channel:
            for check in CHECKS:
                check(contract, channel)
                print(f"ok {target.split(':')[0]} {check.__name__}")


main(*sys.argv[1:])
