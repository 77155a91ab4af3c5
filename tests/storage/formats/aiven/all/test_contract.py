from tests.storage.formats.aiven.aiven_contract import AivenContract


class TestCompressed(AivenContract):
    compression = True


class TestEncrypted(AivenContract):
    encryption = True
