from tests.storage.formats.aiven.aiven_contract import AivenContract


class TestPlain(AivenContract):
    pass


class TestCompressedAndEncrypted(AivenContract):
    compression = True
    encryption = True
