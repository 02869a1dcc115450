"""What is wrong with a record, as an error carries it."""

from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError


def test_an_error_has_a_reason_and_a_condition() -> None:
    error = BadRecordError("is no JSON")
    assert (error.reason, error.hint, error.condition) == ("is no JSON", "", "DECODE_FAILED")
    assert issubclass(BadValueError, ValueError)
